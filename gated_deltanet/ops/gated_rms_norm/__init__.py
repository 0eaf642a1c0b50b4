"""The gated RMS norm behind the token mixer (section 3.4)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..launches import triton_operator
from ..library import empty_contiguous, operator, plain
from ..prepared import prepared
from . import blocked, cpp, reference

SCHEMA = "(Tensor x, Tensor? gate, Tensor weight, float eps) -> Tensor"


def _fake(x, gate, weight, eps):
    return empty_contiguous(x)


BACKENDS = {
    "reference": operator("gated_rms_norm_reference", SCHEMA, reference.forward, _fake),
    "blocked": operator("gated_rms_norm_blocked", SCHEMA, blocked.forward, _fake, blocked.backward),
    "cpp": operator("gated_rms_norm_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
    "triton": triton_operator("gated_rms_norm_triton", SCHEMA, _fake, f"{__name__}.triton_norm"),
}
WIDEST = 8192  # rows of the kernels in Triton: they hold one at once


class Inputs(NamedTuple):
    """What `gated_rms_norm` is given."""

    x: Tensor
    gate: Tensor | None
    weight: Tensor
    eps: float
    backend: str


def gated_rms_norm(
    x: Tensor, gate: Tensor | None, weight: Tensor, *, eps: float = 1e-5, backend: str = "auto"
) -> Tensor:
    """Over the last axis,

        y = x / √(mean(x²) + eps) · weight · silu(gate)

    x: [..., d]. gate: [..., d], or None for the plain RMS norm. weight: [d], of any floating-point dtype. eps: ≥ 0.
    backend: "reference", "blocked" (blocks of rows, with its own gradient), "cpp" (native, on a CPU, float32
    and bfloat16), "triton" (on a GPU, d up to 8192, not float64), or "auto": cpp where it can run, triton on a GPU
    that it is compiled for in tests, else blocked.

    Returns y: [..., d], in x's dtype; inside everything is float32 (float64 with float64 inputs).
    """
    return _norm(Inputs(x, gate, weight, eps, backend))


@prepared
def _norm(x: Inputs) -> Callable[[Inputs], Tensor]:
    op = "gated_rms_norm"
    axes = " ".join([f"x{i}" for i in range(getattr(x.x, "ndim", 1) - 1)] + ["d"])
    checks.check_shapes(op, x=(x.x, axes), gate=(x.gate, f"? {axes}"), weight=(x.weight, "d"))
    checks.check_floats(op, x=x.x, **({} if x.gate is None else {"gate": x.gate}))
    checks.check_floats(op, weight=x.weight)
    checks.check_number(op, "eps", x.eps, most=torch.finfo(torch.float32).max)
    d = x.x.shape[-1]
    beyond = f"takes d up to {WIDEST}, x has {d}" if d > WIDEST else None
    form = checks.choose_backend(op, BACKENDS, x.backend, auto="blocked", like=x.x, beyond=beyond)
    if form is BACKENDS["cpp"] and plain(x.x, x.gate, x.weight) and x.weight.dtype == torch.float32:
        form = cpp.prepare_forward(x.x, x.gate, x.eps)
    return lambda x: form(x.x, x.gate, x.weight, x.eps)
