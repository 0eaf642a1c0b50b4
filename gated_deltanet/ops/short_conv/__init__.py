"""The short convolution in front of q, k and v (section 3.4)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import checks
from ..library import empty_contiguous, operator, plain, without_autocast
from ..packing import each_sequence
from ..plans import planned
from . import blocked, cpp
from .reference import convolution

SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor state, str? activation, Tensor? cu_seqlens) -> (Tensor, Tensor)"
)


def _fake(x, weight, bias, state, activation, cu_seqlens):
    return empty_contiguous(x), empty_contiguous(state)


def _per_sequence(x, weight, bias, state, activation, cu_seqlens):
    return each_sequence(lambda x, state: convolution(x, weight, bias, state, activation), (x,), state, cu_seqlens)


BACKENDS = {
    "reference": operator("short_conv_reference", SCHEMA, _per_sequence, _fake),
    "blocked": operator("short_conv_blocked", SCHEMA, blocked.forward, _fake, blocked.backward),
    "cpp": operator("short_conv_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
}


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
    float32 and bfloat16), or "auto": cpp where it can run, else blocked.

    Returns y: [B, L, D], in x's dtype, and the state after the last token of each sequence. Sums are in float32.
    """
    return _conv(x, weight, bias, state, activation, cu_seqlens, backend)


@planned
def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    activation: str | None,
    cu_seqlens: Tensor | None,
    backend: str,
) -> Callable[..., tuple[Tensor, Tensor]]:
    op = "short_conv"
    sizes = checks.check_shapes(op, x=(x, "B L D"), weight=(weight, "D K"), bias=(bias, "? D"))
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, x)
    _check(op, x, weight, bias, state, activation, sizes)
    form = checks.choose_backend(op, BACKENDS, backend, auto="blocked", like=x)
    whole = state is not None and cu_seqlens is None and x.dtype == torch.float32
    if form is BACKENDS["cpp"] and whole and plain(x, weight, bias, state):
        forward = cpp.forward_like(x, weight, activation)
        return lambda *inputs: forward(*inputs[:6])
    shape = [sizes["N"], sizes["K"] - 1, sizes["D"]]

    def run(
        x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, activation: str | None, *others: Any
    ) -> tuple[Tensor, Tensor]:
        cu_seqlens = others[0]
        checks.check_cu_seqlens(op, cu_seqlens, x)
        state = x.new_zeros(shape) if state is None else state
        return form(x, weight, bias, state, activation, cu_seqlens)

    return run


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
        raise ValueError(f"{op}: activation is {activation!r}, expected 'silu' or None")
    checks.check_floats(op, x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    return checks.check_state(op, state, "N K−1 D", sizes | {"K−1": sizes["K"] - 1}, like=x, dtype=x.dtype)
