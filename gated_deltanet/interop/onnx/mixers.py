"""Every mixer in ONNX: what its module's `forward` computes, in the same order. x, y: [B, L, d_model]."""

import math
from collections.abc import Callable
from typing import Any

import torch
from onnx import TensorProto

from gated_deltanet.layers import (
    HGRN2,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba,
    Mamba2,
    RetNet,
)

from .graph import PAST, PRESENT, Graph, Scope
from .rules import convolution, feature_map, rule, unit


def gated_deltanet(s: Scope, c: GatedDeltaNet, x: str) -> str:
    g = s.graph
    q = convolution(s, "q_conv", s.linear("q_proj", x), c.feature_map)
    k = convolution(s, "k_conv", s.linear("k_proj", x), c.feature_map)
    v = convolution(s, "v_conv", s.linear("v_proj", x))
    q = unit(g, q, c.n_heads, c.d_k, c.qk_norm, c.d_k**-0.5)
    k = unit(g, k, c.n_h * c.n_heads, c.d_k, c.qk_norm)
    beta = g.op("Mul", g.op("Sigmoid", s.linear("b_proj", x)), g.constant(c.beta_max))
    log_alpha = g.op("Mul", *decayed(s, s.linear("a_proj", x))) if c.decay else ""
    sizes = c.n_heads, c.H_v, c.d_k, c.d_v
    if c.n_h == 1:
        o = rule(s, q, k, v, sizes, log_alpha, beta)
    else:
        o = delta_product(s, q, k, v, sizes, log_alpha, beta, c.n_h)
    if c.out_norm:
        o = s.norm("out_norm", o, c.H_v, c.out_eps)
    if c.gate:
        o = g.op("Mul", o, g.silu(s.linear("gate_proj", x)))
    return s.linear("out_proj", o)


def delta_product(
    s: Scope, q: str, k: str, v: str, sizes: tuple[int, int, int, int], log_alpha: str, beta: str, n_h: int
) -> str:
    """n_h delta steps a token: it decays before the first, and is read after the last."""
    g, (H, H_v, d_k, d_v) = s.graph, sizes
    k, v, beta = (g.reshape(z, 0, -1, d) for z, d in ((k, H * d_k), (v, H_v * d_v), (beta, H_v)))  # [B, L · n_h, …]

    def padded(z: str, before: int, after: int, d: int) -> str:
        z = g.op("Pad", g.reshape(z, 0, 0, 1, d), g.integers(0, 0, before, 0, 0, 0, after, 0))
        return g.reshape(z, 0, -1, d)

    q = padded(q, n_h - 1, 0, H * d_k)
    log_alpha = padded(log_alpha, 0, n_h - 1, H_v) if log_alpha else ""
    o = g.reshape(rule(s, q, k, v, sizes, log_alpha, beta), 0, -1, n_h, H_v * d_v)
    return g.op("Gather", o, g.constant(n_h - 1, int), axis=2)


def deltanet(s: Scope, c: DeltaNet, x: str) -> str:
    return gated_deltanet(s, c.gated, x)


def decayed(s: Scope, raw: str) -> tuple[str, str]:
    """dt and A of `layers.decay.Decay`."""
    g, A_log = s.graph, "decay.A_log"
    dt = g.op("Softplus", g.op("Add", raw, s.tensor("decay.dt_bias")))
    return dt, g.weight(f"{s.prefix}decay.A", s.shape(A_log), lambda w: -w.float().exp(), s.prefix + A_log)


def longhorn(s: Scope, c: Longhorn, x: str) -> str:
    g = s.graph
    q, k, v = (convolution(s, f"{name}_conv", s.linear(f"{name}_proj", x)) for name in "qkv")
    q = g.op("Mul", q, g.constant(c.d_k**-0.5))
    beta = g.op("Sigmoid", s.linear("b_proj", x))
    length2 = g.op("ReduceSumSquare", g.reshape(k, 0, 0, c.n_heads, c.d_k), g.integers(-1), keepdims=0)
    epsilon = g.op("Div", beta, g.op("Add", g.op("Mul", beta, length2), g.constant(1.0)))
    o = rule(s, q, k, v, (c.n_heads, c.n_heads, c.d_k, c.d_v), beta=epsilon)
    o = s.norm("out_norm", o, c.n_heads)
    return s.linear("out_proj", g.op("Mul", o, g.silu(s.linear("gate_proj", x))))


def linear_attention(s: Scope, c: LinearAttention, x: str) -> str:
    g = s.graph
    q, k = (feature_map(g, s.linear(f"{name}_proj", x), c.feature_map) for name in "qk")
    q = g.op("Mul", q, g.constant(c.d_k**-0.5))
    o = rule(s, q, k, s.linear("v_proj", x), (c.n_heads, c.n_heads, c.d_k, c.d_v))
    return s.linear("out_proj", s.norm("out_norm", o, c.n_heads))


def retnet(s: Scope, c: RetNet, x: str) -> str:
    g, heads = s.graph, torch.arange(c.n_heads)
    q, k = (rotated(g, s.linear(f"{name}_proj", x), c.n_heads, c.rope_theta, c.d_k) for name in "qk")
    k = g.op("Mul", k, g.constant(c.d_k**-0.5))
    fixed = g.constant(torch.log1p(-torch.exp2(-5.0 - heads)).numpy())
    shape = g.op("Concat", g.op("Shape", x, start=0, end=2), g.integers(c.n_heads), axis=0)
    o = rule(s, q, k, s.linear("v_proj", x), (c.n_heads, c.n_heads, c.d_k, c.d_v), g.op("Expand", fixed, shape))
    o = s.norm("out_norm", o, c.n_heads)
    return s.linear("out_proj", g.op("Mul", o, g.silu(s.linear("gate_proj", x))))


def hgrn2(s: Scope, c: HGRN2, x: str) -> str:
    """f = bound + (1 − bound) σ(raw), so 1 − f = (1 − bound) σ(−raw); log f by logaddexp, as in its layer."""
    g, raw = s.graph, s.linear("f_proj", x)
    log_f, k = log_sigmoid(g, raw), g.op("Sigmoid", g.op("Neg", raw))
    if s.has("lower_bound"):
        depth = s.layer / g.config.n_layers
        bound = g.op("Add", s.tensor("lower_bound"), g.constant(math.log(depth / (1 - depth))))
        below = g.op("Neg", bound)
        k = g.op("Mul", k, g.op("Sigmoid", below))
        a, b = log_sigmoid(g, bound), g.op("Add", log_sigmoid(g, below), log_f)
        apart = g.op("Neg", g.op("Abs", g.op("Sub", a, b)))
        log_f = g.op("Add", g.op("Max", a, b), g.op("Softplus", apart))
    o = rule(s, g.silu(s.linear("q_proj", x)), k, s.linear("v_proj", x), (c.n_heads, c.n_heads, c.d_k, c.d_v), log_f)
    return s.linear("out_proj", s.norm("out_norm", o))


def log_sigmoid(g: Graph, x: str) -> str:
    return g.op("Neg", g.op("Softplus", g.op("Neg", x)))


def mamba2(s: Scope, c: Mamba2, x: str) -> str:
    g, values, keys = s.graph, c.n_heads * c.d_v, c.n_groups * c.d_k
    gate, xBC, raw = split(g, s.linear("in_proj", x), values, values + 2 * keys, c.n_heads)
    v, k, q = split(g, convolution(s, "conv", xBC), values, keys, keys)
    dt, A = decayed(s, raw)
    by_head = g.reshape(v, 0, 0, c.n_heads, c.d_v)
    dt_v = g.reshape(g.op("Mul", by_head, g.op("Unsqueeze", dt, g.integers(-1))), 0, 0, -1)
    o = rule(s, q, k, dt_v, (c.n_groups, c.n_heads, c.d_k, c.d_v), g.op("Mul", dt, A))
    skipped = g.op("Mul", by_head, g.op("Unsqueeze", s.tensor("D"), g.integers(-1)))
    o = g.op("Add", o, g.reshape(skipped, 0, 0, -1))
    o = grouped_norm(s, "out_norm", g.op("Mul", g.silu(gate), o), c.n_groups)
    return s.linear("out_proj", o)


def grouped_norm(s: Scope, name: str, x: str, groups: int) -> str:
    """RMS norm of so many parts of the last axis, each with its own weights."""
    if groups == 1:
        return s.norm(name, x)
    g, d = s.graph, s.shape(f"{name}.weight")[0] // groups
    eps = g.config.norm_eps
    y = g.op("RMSNormalization", g.reshape(x, 0, 0, groups, d), g.constant([1.0] * d), axis=-1, epsilon=eps)
    return g.op("Mul", g.reshape(y, 0, 0, -1), s.tensor(f"{name}.weight"))


def mamba(s: Scope, c: Mamba, x: str) -> str:
    """There is no operator for its scan: every channel has its own decays."""
    g = s.graph
    z, gate = split(g, s.linear("in_proj", x), c.d_inner, c.d_inner)
    z = convolution(s, "conv", z)
    raw, B, C = split(g, s.linear("x_proj", z), c.dt_rank, c.d_state, c.d_state)
    dt, A = decayed(s, s.linear("dt_proj", raw))
    columns = [g.op("Unsqueeze", y, g.integers(-1)) for y in (dt, g.op("Mul", dt, z), C)]
    row = g.op("Unsqueeze", B, g.integers(-2))

    def step(body: Graph, h: str, dt: str, dt_z: str, C: str, B: str) -> tuple[str, str]:
        h = body.op("Mul", h, body.op("Exp", body.op("Mul", dt, A)))  # forget
        h = body.op("Add", h, body.op("Mul", dt_z, B))
        return h, body.op("MatMul", h, C)

    h, y = g.scan(step, s.past("h", c.d_inner, c.d_state), *columns, row)
    s.present("h", h, c.d_inner, c.d_state)
    y = g.op("Add", g.reshape(y, 0, 0, c.d_inner), g.op("Mul", z, s.tensor("D")))
    return s.linear("out_proj", g.op("Mul", g.silu(gate), y))


def split(g: Graph, x: str, *sizes: int) -> list[str]:
    return g.ops("Split", x, g.integers(*sizes), n=len(sizes), axis=-1)


def attention(s: Scope, c: Attention, x: str) -> str:
    """Keys and values of the tokens before come oldest first; with a window, of the last so many."""
    g, shape = s.graph, (c.H_kv, c.d_head)
    kept = f"_{c.window}" if c.window else ""  # axes of other windows are of other lengths
    q, k, v = (s.linear(f"{name}_proj", x) for name in "qkv")
    if c.qk_norm != "none":
        q, k = (
            s.norm(f"{name}_norm", z, n if c.qk_norm == "head" else 1)
            for name, z, n in (("q", q, c.n_heads), ("k", k, c.H_kv))
        )
    if c.rope_theta is not None:
        dims = c.rope_dims or c.d_head
        q, k = (rotated(g, z, n, c.rope_theta, dims) for z, n in ((q, c.n_heads), (k, c.H_kv)))
    seen = []
    for name, z in (("k", k), ("v", v)):
        z = g.op("Concat", s.past(name, f"past{kept}", *shape), g.reshape(z, 0, 0, *shape), axis=1)
        s.present(name, g.take(z, 1, -c.window, 2**31) if c.window else z, f"present{kept}", *shape)
        seen.append(g.reshape(z, 0, 0, c.H_kv * c.d_head))
    mask = g.once(("mask", c.window), lambda: visible(g, x, seen[0], c.window))
    o = g.op("Attention", q, *seen, mask, q_num_heads=c.n_heads, kv_num_heads=c.H_kv)
    if c.gate:
        o = g.op("Mul", o, g.op("Sigmoid", s.linear("gate_proj", x)))
    return s.linear("out_proj", o)


def visible(g: Graph, x: str, k: str, window: int | None) -> str:
    """[L, past + L]: which tokens a token sees. x: [B, L, …], k: [B, past + L, …]."""
    zero, one = g.constant(0, int), g.constant(1, int)
    n_q, n_k = (g.op("Squeeze", g.size(z, 1)) for z in (x, k))
    keys = g.op("Range", zero, n_k, one)
    queries = g.op("Unsqueeze", g.op("Range", g.op("Sub", n_k, n_q), n_k, one), g.integers(1))
    age = g.op("Sub", queries, keys)
    seen = g.op("GreaterOrEqual", age, zero)
    return seen if window is None else g.op("And", seen, g.op("Less", age, g.constant(window, int)))


def rotated(g: Graph, x: str, heads: int, theta: float, dims: int) -> str:
    """The first `dims` numbers of each head turned to their positions. x: [B, L, H · d]."""

    def angle() -> str:
        speed = theta ** (-torch.arange(0, dims, 2, dtype=torch.float32) / dims)
        at = g.op("Cast", g.once("positions", lambda: positions(g, x)), to=TensorProto.FLOAT)
        return g.op("Mul", g.op("Unsqueeze", at, g.integers(-1)), g.constant(speed.numpy()))

    key = theta, dims
    cos, sin = (g.once((kind, *key), lambda kind=kind: g.op(kind, g.once(key, angle))) for kind in ("Cos", "Sin"))
    return g.op("RotaryEmbedding", x, cos, sin, num_heads=heads, rotary_embedding_dim=dims)


def positions(g: Graph, x: str) -> str:
    """[B, L]: how many tokens there were before each. The state `length` counts them: [B], 0 at the start."""
    length = g.input(f"{PAST}length", TensorProto.INT64, ["batch"])
    n = g.size(x, 1)
    g.output(f"{PRESENT}length", g.op("Add", length, n), TensorProto.INT64, ["batch"])
    here = g.op("Range", g.constant(0, int), g.op("Squeeze", n), g.constant(1, int))
    return g.op("Add", g.op("Unsqueeze", length, g.integers(1)), here)


MIXERS: dict[type, Callable[[Scope, Any, str], str]] = {
    GatedDeltaNet: gated_deltanet,
    DeltaNet: deltanet,
    Longhorn: longhorn,
    LinearAttention: linear_attention,
    RetNet: retnet,
    HGRN2: hgrn2,
    Mamba2: mamba2,
    Mamba: mamba,
    Attention: attention,
}
