"""Linear attention, delta rules and short convolutions in ONNX.

Opset 27 has operators for them, `LinearAttention` and `CausalConvWithState`, and ONNX Runtime has the same in its own
domain. Without them a rule is a `Scan` over tokens, its recurrence as it is written.
"""

from gated_deltanet.layers.features import EPS

from .graph import Graph, Scope

UPDATES = {
    (False, False): "linear",
    (True, False): "gated",
    (False, True): "delta",
    (True, True): "gated_delta",
}  # by whether there are a decay and a β


def rule(
    s: Scope, q: str, k: str, v: str, sizes: tuple[int, int, int, int], log_alpha: str = "", beta: str = ""
) -> str:
    """o: [B, L, H_v · d_v]. The state is S: [B, H_v, d_k, d_v].

    q, k: [B, L, H · d_k], v: [B, L, H_v · d_v], log_alpha: [B, L, H_v] or [B, L, H_v · d_k], beta: [B, L, H_v].
    sizes: H, H_v, d_k, d_v.
    """
    g, (H, H_v, d_k, d_v) = s.graph, sizes
    S = s.past("S", H_v, d_k, d_v)
    q, k = (repeated(g, x, H, H_v // H) for x in (q, k))
    if g.dialect.domain is None:
        S, o = token_by_token(g, S, q, k, v, (H_v, d_k, d_v), log_alpha, beta)
    else:
        heads = {"q_num_heads": H_v, "kv_num_heads": H_v, "scale": 1.0}
        update = UPDATES[bool(log_alpha), bool(beta)]
        inputs = [q, k, v, S, log_alpha, beta]
        o, S = g.ops("LinearAttention", *inputs, n=2, domain=g.dialect.domain, **heads, update_rule=update)
    s.present("S", S, H_v, d_k, d_v)
    return o


def repeated(g: Graph, x: str, heads: int, times: int) -> str:
    """Each head so many times, one after the other: [B, L, H · d] -> [B, L, H · times · d]."""
    if times == 1:
        return x
    x = g.op("Tile", g.reshape(x, 0, 0, heads, 1, -1), g.integers(1, 1, 1, times, 1))
    return g.reshape(x, 0, 0, -1)


def token_by_token(
    g: Graph, S: str, q: str, k: str, v: str, sizes: tuple[int, int, int], log_alpha: str, beta: str
) -> tuple[str, str]:
    H, _, d_v = sizes
    rows = [g.reshape(x, 0, 0, H, 1, -1) for x in (q, k, v)]  # [B, L, H, 1, d]
    if log_alpha:
        rows.append(g.reshape(g.op("Exp", log_alpha), 0, 0, H, -1, 1))  # [B, L, H, 1 or d_k, 1]
    if beta:
        rows.append(g.reshape(beta, 0, 0, H, 1, 1))

    def step(body: Graph, S: str, q: str, k: str, v: str, *gates: str) -> tuple[str, str]:
        if log_alpha:
            S = body.op("Mul", S, gates[0])  # forget
        if beta:
            v = body.op("Mul", gates[-1], body.op("Sub", v, body.op("MatMul", k, S)))  # what is not stored yet
        S = body.op("Add", S, body.op("Mul", body.op("Transpose", k, perm=[0, 1, 3, 2]), v))
        return S, body.op("MatMul", q, S)

    S, o = g.scan(step, S, *rows)
    return S, g.reshape(o, 0, 0, H * d_v)


def convolution(s: Scope, name: str, x: str, activation: str = "silu") -> str:
    """`ShortConv`, with its activation. x: [B, L, D] -> the same. The state is what it has read: [B, K − 1, D]."""
    g, weight = s.graph, f"{name}.weight"
    if not s.has(weight):
        return feature_map(g, x, activation)
    D, K = s.shape(weight)
    w = g.weight(s.prefix + weight, (D, 1, K), lambda w: w[:, None], s.prefix + weight)
    b = s.tensor(f"{name}.bias") if s.has(f"{name}.bias") else ""
    past, x = (g.op("Transpose", z, perm=[0, 2, 1]) for z in (s.past(name, K - 1, D), x))
    if g.dialect.domain is None:
        both = g.op("Concat", past, x, axis=2)
        y, present = g.op("Conv", both, w, b, group=D), last(g, both, K - 1)
        y = feature_map(g, y, activation)
    else:
        fused = activation == "silu"
        options = {"domain": g.dialect.domain, "activation": "silu" if fused else "none"}
        y, present = g.ops("CausalConvWithState", x, w, b, past, n=2, **options)
        y = y if fused else feature_map(g, y, activation)
    s.present(name, g.op("Transpose", present, perm=[0, 2, 1]), K - 1, D)
    return g.op("Transpose", y, perm=[0, 2, 1])


def last(g: Graph, x: str, n: int) -> str:
    """Of axis 2, the last n."""
    return g.take(x, 2, -n, 2**31) if n else g.take(x, 2, 0, 0)


def feature_map(g: Graph, x: str, name: str) -> str:
    if name == "silu":
        return g.silu(x)
    return g.op("Relu", x) if name == "relu" else g.op("Add", g.op("Elu", x), g.constant(1.0))


def unit(g: Graph, x: str, heads: int, d: int, norm: str, scale: float = 1.0) -> str:
    """Each head over its norm, times scale. x: [B, L, H · d]."""
    x = g.reshape(x, 0, 0, heads, d)
    if norm == "l2":  # x / √(‖x‖² + EPS) is the RMS norm over √d
        y = g.op("RMSNormalization", x, g.constant([scale * d**-0.5] * d), axis=-1, epsilon=EPS / d)
    else:
        length = g.op("ReduceL1", x, g.integers(-1), keepdims=1)
        y = g.op("Mul", g.op("Div", x, g.op("Add", length, g.constant(EPS))), g.constant(scale))
    return g.reshape(y, 0, 0, -1)
