"""The gate of the MLP: SwiGLU."""

from collections.abc import Callable

from torch import Tensor

from .. import checks
from ..library import empty_contiguous, operator, plain
from ..plans import planned
from . import cpp, reference

SCHEMA = "(Tensor gate, Tensor up) -> Tensor"


def _fake(gate, up):
    return empty_contiguous(gate)


BACKENDS = {
    "reference": operator("swiglu_reference", SCHEMA, reference.forward, _fake),
    "cpp": operator("swiglu_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
}


def swiglu(gate: Tensor, up: Tensor, *, backend: str = "auto") -> Tensor:
    """Element by element,

        y = silu(gate) · up

    gate, up: [..., d].
    backend: "reference", "cpp" (native, on a CPU, float32 and bfloat16), or "auto": cpp where it can run.

    Returns y: [..., d], in the inputs' dtype; inside everything is float32 (float64 with float64 inputs).
    """
    return _swiglu(gate, up, backend)


@planned
def _swiglu(gate: Tensor, up: Tensor, backend: str) -> Callable[..., Tensor]:
    op = "swiglu"
    axes = " ".join([f"x{i}" for i in range(getattr(gate, "ndim", 1) - 1)] + ["d"])
    checks.check_shapes(op, gate=(gate, axes), up=(up, axes))
    checks.check_floats(op, gate=gate, up=up)
    form = checks.choose_backend(op, BACKENDS, backend, auto="reference", like=gate)
    if form is BACKENDS["cpp"] and plain(gate, up):
        form = cpp.forward_like(gate)
    return lambda gate, up, _: form(gate, up)
