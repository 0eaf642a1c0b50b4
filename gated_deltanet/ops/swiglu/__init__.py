"""The gate of the MLP: SwiGLU."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .. import checks
from ..launches import triton_operator
from ..library import empty_contiguous, operator, plain
from ..prepared import prepared
from . import cpp, reference

SCHEMA = "(Tensor gate, Tensor up) -> Tensor"


def _fake(gate, up):
    return empty_contiguous(gate)


BACKENDS = {
    "reference": operator("swiglu_reference", SCHEMA, reference.forward, _fake),
    "cpp": operator("swiglu_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
    "triton": triton_operator("swiglu_triton", SCHEMA, _fake, f"{__name__}.triton_swiglu"),
}


class Inputs(NamedTuple):
    """What `swiglu` is given."""

    gate: Tensor
    up: Tensor
    backend: str


def swiglu(gate: Tensor, up: Tensor, *, backend: str = "auto") -> Tensor:
    """Element by element,

        y = silu(gate) · up

    gate, up: [..., d].
    backend: "reference", "cpp" (native, on a CPU, float32 and bfloat16), "triton" (on a GPU, not float64), or "auto":
    cpp where it can run, triton on a GPU that it is compiled for in tests, else reference.

    Returns y: [..., d], in the inputs' dtype; inside everything is float32 (float64 with float64 inputs).
    """
    return _swiglu(Inputs(gate, up, backend))


@prepared
def _swiglu(x: Inputs) -> Callable[[Inputs], Tensor]:
    op = "swiglu"
    axes = " ".join([f"x{i}" for i in range(getattr(x.gate, "ndim", 1) - 1)] + ["d"])
    checks.check_shapes(op, gate=(x.gate, axes), up=(x.up, axes))
    checks.check_floats(op, gate=x.gate, up=x.up)
    form = checks.choose_backend(op, BACKENDS, x.backend, auto="reference", like=x.gate)
    if form is BACKENDS["cpp"] and plain(x.gate, x.up):
        form = cpp.prepare_forward(x.gate)
    return lambda x: form(x.gate, x.up)
