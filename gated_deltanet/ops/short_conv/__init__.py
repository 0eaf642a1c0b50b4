"""The short convolution in front of q, k and v (section 3.4)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import checks, gpu
from ..launches import deferred, triton_operator
from ..library import empty_contiguous, operator, plain, without_autocast, without_gradient
from ..packing import each_sequence
from ..prepared import prepared
from . import blocked, cpp
from .reference import convolution

SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor state, str? activation, Tensor? cu_seqlens) -> (Tensor, Tensor)"
)


def _fake(x, weight, bias, state, activation, cu_seqlens):
    return empty_contiguous(x), empty_contiguous(state)


def _per_sequence(x, weight, bias, state, activation, cu_seqlens):
    def of_sequence(x, state):
        return convolution(x, weight, bias, state, activation)

    return each_sequence("short_conv", of_sequence, (x,), state, cu_seqlens)


BACKENDS = {
    "reference": operator("short_conv_reference", SCHEMA, _per_sequence, _fake),
    "blocked": operator("short_conv_blocked", SCHEMA, blocked.forward, _fake, blocked.backward),
    "cpp": operator("short_conv_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
    "triton": triton_operator("short_conv_triton", SCHEMA, _fake, f"{__name__}.triton_conv"),
}
MOST_TAPS = 16  # of the kernels in Triton: their loops over taps are unrolled
step_on_gpu = deferred(f"{__name__}.triton_conv", "step")


def _beyond(K: int) -> str | None:
    return f"takes K up to {MOST_TAPS}, weight has {K}" if K > MOST_TAPS else None


class Inputs(NamedTuple):
    """What `short_conv` is given."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    state: Tensor | None
    activation: str | None
    cu_seqlens: Tensor | None
    backend: str


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    activation: str | None = "silu",
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A causal convolution of each channel with its own K weights,

        y_t = act(bias + Σ_i weight[:, i] x_{t−K+1+i})        i = 0 … K − 1

    x: [B, L, D]. weight: [D, K]. bias: [D], zero if None. activation: "silu" or None.
    state: [N, K − 1, D], in x's dtype, the inputs before the first token, oldest first; zero if None.
    cu_seqlens: [N + 1], packs N sequences in one row (B = 1). Without it N = B.
    backend: "reference" (token by token), "blocked" (shifted products on blocks of tokens), "cpp" (native, on a CPU,
    float32 and bfloat16), "triton" (on a GPU, K up to 16, not float64), or "auto": cpp where it can run, triton on a
    GPU that it is compiled for in tests, else blocked.

    Returns y: [B, L, D], in x's dtype, and the state after the last token of each sequence. Sums are in float32.
    """
    return _conv(Inputs(x, weight, bias, state, activation, cu_seqlens, backend))


@prepared
def _conv(x: Inputs) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    op = "short_conv"
    sizes = checks.check_shapes(op, x=(x.x, "B L D"), weight=(x.weight, "D K"), bias=(x.bias, "? D"))
    sizes["N"] = checks.check_cu_seqlens(op, x.cu_seqlens, x.x)
    _check(op, x.x, x.weight, x.bias, x.state, x.activation, sizes)
    form = checks.choose_backend(op, BACKENDS, x.backend, auto="blocked", like=x.x, beyond=_beyond(sizes["K"]))
    shape = [sizes["N"], sizes["K"] - 1, sizes["D"]]

    def run(x: Inputs) -> tuple[Tensor, Tensor]:
        state = x.x.new_zeros(shape) if x.state is None else x.state
        return form(x.x, x.weight, x.bias, state, x.activation, x.cu_seqlens)

    whole = x.state is not None and x.cu_seqlens is None and x.x.dtype == torch.float32
    if form is not BACKENDS["cpp"] or not whole or not plain(x.x, x.weight, x.bias, x.state):
        return run
    forward = cpp.prepare_forward(x.x, x.weight, x.activation)

    def run_whole(x: Inputs) -> tuple[Tensor, Tensor]:
        assert x.state is not None  # as in the first call of this layout
        return forward(x.x, x.weight, x.bias, x.state)

    return run_whole


@without_autocast
def short_conv_step_(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, *, activation: str | None = "silu"
) -> Tensor:
    """One token of decoding: updates `state` in place and returns y: [N, D]. No gradient.

    x: [N, D], state: [N, K − 1, D], the others as in `short_conv`.
    """
    op = "short_conv_step_"
    sizes = checks.check_shapes(op, x=(x, "N D"), weight=(weight, "D K"), bias=(bias, "? D"))
    if state is None:
        raise ValueError(f"{op}: state is None, expected a tensor [N, K − 1, D] to update in place")
    _check(op, x, weight, bias, state, activation, sizes)
    checks.check_no_grad(op, x, weight, bias, state)
    if gpu.preferred(x) and not _beyond(sizes["K"]) and state.is_contiguous() and without_gradient(x, weight, state):
        return step_on_gpu(x, weight, bias, state, activation)
    inputs = torch.cat([state, x[:, None]], 1)
    state.copy_(inputs[:, 1:])
    dtype = checks.accumulator(x)
    y = (inputs.to(dtype) * weight.mT.to(dtype)).sum(1)
    y = y if bias is None else y + bias
    return (F.silu(y) if activation == "silu" else y).to(x.dtype)


def _check(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, activation: str | None, sizes: dict
) -> Tensor:
    if sizes["K"] < 1:
        raise ValueError(f"{op}: weight is {list(weight.shape)}, expected [D, K] with K ≥ 1")
    if activation not in ("silu", None):
        raise ValueError(f"{op}: activation is {checks.shown(activation)}, expected 'silu' or None")
    checks.check_floats(op, x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    return checks.check_state(op, state, "N K−1 D", sizes | {"K−1": sizes["K"] - 1}, like=x, dtype=x.dtype)
