"""Random calls of every op, for tools/fuzz_ops.py.

Sizes are small and odd; operands are scaled by 1e-38 to 1e4, gates go from 0 to −inf, β from 0 to 2, keys of the delta
rules are unit vectors or shorter; sequences may be packed and start from a state; tensors may lie anywhere in memory.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import is_float, round_operands
from gated_deltanet.ops.linear.packing import BITS

SMALLEST, LARGEST = -38, 4  # powers of ten operands are scaled by


class Case(NamedTuple):
    """One call: function(backend=…, **inputs). forms: an op whose backends it can run with. scale: of the gradients."""

    function: Callable
    inputs: dict[str, Any]
    forms: str
    gates: tuple[str, ...] = ()
    scale: float = 1.0


class Draw:
    """Random choices of one case."""

    def __init__(self, op: str, seed: int):
        self.choices = random.Random(f"{op} {seed}")
        self.numbers = torch.Generator().manual_seed(self.choices.getrandbits(60))
        self.half = self.chance(0.25)

    def chance(self, probability: float) -> bool:
        return self.choices.random() < probability

    def size(self, most: int) -> int:
        """Small ones are as likely as large ones."""
        return int((most + 1) ** self.choices.random())

    def scale(self, largest: float = LARGEST) -> float:
        return 1.0 if self.chance(0.5) else 10 ** self.choices.uniform(SMALLEST, largest)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.numbers)

    def operand(self, *shape: int, largest: float = LARGEST) -> Tensor:
        """Normal numbers times one scale; now and then one for each token, or some zeros."""
        x = self.normal(*shape) * self.scale(largest)
        if self.chance(0.1):
            powers = torch.rand(shape[:2], generator=self.numbers) * SMALLEST
            x = x * (10**powers).reshape(*shape[:2], *(1 for _ in shape[2:]))
        return x * (torch.rand(shape, generator=self.numbers) < 0.7) if self.chance(0.1) else x

    def mixed(self, shape: tuple[int, ...], values: list[Tensor]) -> Tensor:
        """Values of one kind, or at every place of any kind."""
        if self.chance(0.6):
            return self.choices.choice(values)
        kind = torch.randint(len(values), shape, generator=self.numbers)
        return torch.stack(values).gather(0, kind[None])[0]

    def log_alpha(self, *shape: int) -> Tensor:
        ordinary = logsigmoid(self.normal(*shape) + 3)
        strong = -self.normal(*shape).abs() * self.scale()
        return self.mixed(shape, [torch.zeros(shape), ordinary, ordinary, strong, torch.full(shape, -torch.inf)])

    def beta(self, *shape: int) -> Tensor:
        between = 2 * self.normal(*shape).sigmoid()
        ends = [torch.full(shape, float(end)) for end in (0, 1, 2)]
        return self.mixed(shape, [between, between, between * self.scale(0), *ends])

    def keys(self, *shape: int) -> Tensor:
        """Of length 1 at most: the recurrence is stable while β‖k‖² ≤ 2."""
        return normalize(self.normal(*shape), dim=-1) * self.scale(0)

    def sequences(self) -> tuple[int, int, int, Tensor | None]:
        """B, L, N and cu_seqlens."""
        L = self.size(70)
        if self.chance(0.6):
            B = self.choices.randint(1, 3)
            return B, L, B, None
        cuts = sorted(self.choices.randint(0, L) for _ in range(self.choices.randint(0, 4)))
        ends = torch.tensor([0, *cuts, L])
        return 1, L, len(ends) - 1, ends

    def heads(self) -> tuple[int, int, int, int]:
        """H, H_v, d_k and d_v."""
        H = self.choices.choice([1, 1, 2, 3])
        return H, H * self.choices.choice([1, 1, 2, 3]), self.size(36), self.size(36)

    def case(self, function: Callable, inputs: dict[str, Any], forms: str, gates: tuple[str, ...] = ()) -> Case:
        if self.half:
            inputs = round_operands(inputs, torch.bfloat16)
        laid_out = {n: self.laid_out(x) if is_float(x) else x for n, x in inputs.items()}
        return Case(function, laid_out, forms, gates, self.scale())

    def laid_out(self, x: Tensor) -> Tensor:
        """The same numbers elsewhere: at any offset, as part of wider rows, or with axes in another order."""
        way = self.choices.choice(["as it is", "offset", "wider", "permuted"])
        if way == "offset":
            start = self.choices.randint(1, 17)
            return torch.zeros(start + x.numel(), dtype=x.dtype)[start:].view(x.shape).copy_(x)
        if way == "wider":
            start, more = self.choices.randint(0, 5), self.choices.randint(0, 5)
            return (
                x.new_full((*x.shape[:-1], start + x.shape[-1] + more), torch.nan)
                .narrow(-1, start, x.shape[-1])
                .copy_(x)
            )
        if way == "permuted":
            order = self.choices.sample(range(x.ndim), x.ndim)
            back = sorted(range(x.ndim), key=order.__getitem__)
            return x.permute(order).contiguous().permute(back)
        return x


def gated_delta_rule(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), (H, H_v, d_k, d_v) = draw.sequences(), draw.heads()
    inputs = {
        "q": draw.operand(B, L, H, d_k),
        "k": draw.keys(B, L, H, d_k),
        "v": draw.operand(B, L, H_v, d_v),
        "log_alpha": None if draw.chance(0.2) else draw.log_alpha(B, L, H_v),
        "beta": draw.beta(B, L, H_v),
        "state": draw.operand(N, H_v, d_k, d_v) if draw.chance(0.6) else None,
    }
    function = partial(ops.gated_delta_rule, cu_seqlens=cu_seqlens)
    return draw.case(function, inputs, "gated_delta_rule", ("log_alpha", "beta"))


def gated_delta_mix(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), (H, H_v, d_k, d_v) = draw.sequences(), draw.heads()
    inputs = {
        "q": draw.operand(B, L, H, d_k),
        "k": draw.operand(B, L, H, d_k),
        "v": draw.operand(B, L, H_v, d_v),
        "a": draw.operand(B, L, H_v, largest=2),
        "b": draw.operand(B, L, H_v, largest=2),
        "A_log": draw.normal(H_v),
        "dt_bias": draw.normal(H_v) - 3,
        "state": draw.operand(N, H_v, d_k, d_v) if draw.chance(0.6) else None,
    }
    beta_max = draw.choices.choice([1.0, 2.0])
    function = partial(ops.gated_delta_mix, beta_max=beta_max, cu_seqlens=cu_seqlens)
    return draw.case(function, inputs, "gated_delta_mix", ("a", "b", "A_log", "dt_bias"))


def linear_attention(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), (H, H_v, d_k, d_v) = draw.sequences(), draw.heads()
    shape = draw.choices.choice([None, (H_v,), (B, L, H_v), (B, L, H_v), (B, L, H_v, d_k), (B, L, H_v, d_k)])
    inputs = {
        "q": draw.operand(B, L, H, d_k),
        "k": draw.operand(B, L, H, d_k),
        "v": draw.operand(B, L, H_v, d_v),
        "log_alpha": None if shape is None else draw.log_alpha(*shape),
        "state": draw.operand(N, H_v, d_k, d_v) if draw.chance(0.6) else None,
    }
    return draw.case(partial(ops.linear_attention, cu_seqlens=cu_seqlens), inputs, "linear_attention", ("log_alpha",))


def selective_scan(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), D, n = draw.sequences(), draw.size(40), draw.size(20)
    dt = softplus(draw.normal(B, L, D) - 3)
    inputs = {
        "x": draw.operand(B, L, D),
        "dt": draw.mixed((B, L, D), [dt, dt, dt * draw.scale(), torch.zeros(B, L, D)]),
        "A": -draw.normal(D, n).exp() * draw.scale(),
        "B": draw.operand(B, L, n),
        "C": draw.operand(B, L, n),
        "state": draw.operand(N, D, n) if draw.chance(0.6) else None,
    }
    return draw.case(partial(ops.selective_scan, cu_seqlens=cu_seqlens), inputs, "selective_scan", ("dt", "A"))


def attention(draw: Draw) -> Case:
    """Scores stay below some hundreds: beyond, rounding them decides which token is read, in any form."""
    (B, L, N, cu_seqlens), (H_kv, H, d, d_v) = draw.sequences(), draw.heads()
    q, k = draw.operand(B, L, H, d, largest=2), draw.operand(B, L, H_kv, d, largest=0)
    inputs = {"q": q, "k": k, "v": draw.operand(B, L, H_kv, d_v)}
    window = draw.choices.choice([None, draw.size(40)])
    length = None
    if draw.chance(0.5):
        W = window or draw.size(40)
        length = torch.tensor([draw.choices.randint(0, W if window is None else 2 * W) for _ in range(N)])
        written = (torch.arange(W) < length[:, None])[..., None, None]
        inputs["k_cache"] = draw.operand(N, W, H_kv, d, largest=0) * written
        inputs["v_cache"] = draw.operand(N, W, H_kv, d_v) * written
    rope_theta = draw.choices.choice([None, 100.0]) if d % 2 == 0 else None
    options = {"window": window, "rope_theta": rope_theta, "cu_seqlens": cu_seqlens}
    function = partial(attend, length=length, keep_cache=draw.chance(0.5), **options)
    return draw.case(function, inputs, "attention")


def attend(q, k, v, k_cache=None, v_cache=None, *, length, **options):
    """`attention` as a function of tensors; of the cache, only slots that are used."""
    given = None if k_cache is None or v_cache is None else ops.KVCache(k_cache, v_cache, length)
    o, cache = ops.attention(q, k, v, given, **options)
    if cache is None:
        return o
    used = int(cache.length.max())
    return o, cache.k[:, :used], cache.v[:, :used]


def short_conv(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), D, K = draw.sequences(), draw.size(40), draw.choices.randint(1, 6)
    inputs = {
        "x": draw.operand(B, L, D),
        "weight": draw.operand(D, K),
        "bias": draw.normal(D) * draw.scale() if draw.chance(0.5) else None,
        "state": draw.operand(N, K - 1, D) if draw.chance(0.6) else None,
    }
    activation = draw.choices.choice(["silu", "silu", None])
    return draw.case(partial(ops.short_conv, activation=activation, cu_seqlens=cu_seqlens), inputs, "short_conv")


def gated_rms_norm(draw: Draw) -> Case:
    shape = [draw.size(20), draw.size(3), draw.size(150)][draw.choices.randint(0, 1) :]
    gate = draw.operand(*shape) if draw.chance(0.7) else None
    inputs = {"x": draw.operand(*shape), "gate": gate, "weight": draw.normal(shape[-1]) * draw.scale()}
    eps = draw.choices.choice([1e-5, 1e-6])
    return draw.case(partial(ops.gated_rms_norm, eps=eps), inputs, "gated_rms_norm")


def swiglu(draw: Draw) -> Case:
    shape = [draw.size(3), draw.size(20), draw.size(150)][draw.choices.randint(0, 1) :]
    return draw.case(ops.swiglu, {"gate": draw.operand(*shape), "up": draw.operand(*shape)}, "swiglu")


def linear_cross_entropy(draw: Draw) -> Case:
    """Logits stay below some hundreds, as attention's scores."""
    tokens, d, V = draw.size(70), draw.size(40), draw.size(100)
    targets = torch.randint(V, (tokens,), generator=draw.numbers)
    targets[torch.rand(tokens, generator=draw.numbers) < draw.choices.choice([0, 0.3])] = -100
    inputs = {"x": draw.operand(tokens, d, largest=1), "weight": draw.operand(V, d, largest=0) / d**0.5}
    reduction = draw.choices.choice(["mean", "sum", "none"])
    function = partial(ops.linear_cross_entropy, targets=targets, reduction=reduction)
    return draw.case(function, inputs, "linear_cross_entropy")


def linear(draw: Draw) -> Case:
    """With a weight as it is, or packed; then it is no input."""
    N, K, rows = draw.size(70), draw.size(300), [draw.size(3), draw.size(20)][draw.choices.randint(0, 1) :]
    inputs = {
        "x": draw.operand(*rows, K),
        "weight": draw.operand(N, K) / K**0.5,
        "bias": draw.normal(N) * draw.scale() if draw.chance(0.5) else None,
        "added": draw.operand(*rows, N) if draw.chance(0.3) else None,
    }
    format = draw.choices.choice(["", "", *BITS])
    if not format:
        return draw.case(ops.linear, inputs, "linear")
    weight = ops.pack(inputs.pop("weight"), format)
    return draw.case(partial(ops.linear, weight=weight), inputs, "linear")


def longhorn(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), (H, H_v, d_k, d_v) = draw.sequences(), draw.heads()
    inputs = {
        "q": draw.operand(B, L, H, d_k),
        "k": draw.operand(B, L, H, d_k),
        "v": draw.operand(B, L, H_v, d_v),
        "beta": draw.beta(B, L, H_v) * draw.scale(),
        "state": draw.operand(N, H_v, d_k, d_v) if draw.chance(0.6) else None,
    }
    return draw.case(partial(ops.longhorn, cu_seqlens=cu_seqlens), inputs, "gated_delta_rule", ("beta",))


def delta_product(draw: Draw) -> Case:
    (B, L, N, cu_seqlens), (H, H_v, d_k, d_v), n_h = draw.sequences(), draw.heads(), draw.choices.randint(1, 3)
    inputs = {
        "q": draw.operand(B, L, H, d_k),
        "k": draw.keys(B, L, n_h, H, d_k),
        "v": draw.operand(B, L, n_h, H_v, d_v),
        "log_alpha": None if draw.chance(0.2) else draw.log_alpha(B, L, H_v),
        "beta": draw.beta(B, L, n_h, H_v),
        "state": draw.operand(N, H_v, d_k, d_v) if draw.chance(0.6) else None,
    }
    function = partial(ops.delta_product, cu_seqlens=cu_seqlens)
    return draw.case(function, inputs, "gated_delta_rule", ("log_alpha", "beta"))


OPS = {
    draw.__name__: draw
    for draw in (
        gated_delta_rule, gated_delta_mix, linear_attention, selective_scan, attention, short_conv, gated_rms_norm,
        swiglu, linear_cross_entropy, linear, longhorn, delta_product,
    )
}  # fmt: skip
