"""SwiGLU in C++ (csrc/swiglu.cpp)."""

import ctypes
from collections.abc import Callable
from ctypes import c_int64

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous


class SwiGLU(ctypes.Structure):
    """The arguments of swiglu_forward and swiglu_backward, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "d", "threads", "bfloat16")),
        *((name, native.Rows) for name in ("gate", "up", "y", "dy", "dgate", "dup")),
    )


def forward(gate, up):
    y = empty_contiguous(gate)
    run("swiglu_forward", {"gate": gate, "up": up, "y": y})
    return y


def prepare_forward(gate: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """`forward` of contiguous operands like this."""
    size, d = gate.shape[:-1].numel(), gate.shape[-1] if gate.shape else 1
    rows = native.Rows(None, d, d)
    arguments = SwiGLU(size, d, torch.get_num_threads(), gate.dtype == torch.bfloat16, rows, rows, rows)
    call = native.prepare("swiglu_forward", arguments)

    def forward(gate: Tensor, up: Tensor) -> Tensor:
        y = torch.empty_like(gate)
        call.run(gate=gate, up=up, y=y)
        return y

    return forward


def backward(grads, gate, up):
    dgate, dup = empty_contiguous(gate), empty_contiguous(up)
    run("swiglu_backward", {"gate": gate, "up": up, "dy": grads[0], "dgate": dgate, "dup": dup})
    return dgate, dup


def run(kernel: str, operands: dict[str, Tensor]) -> None:
    """operands: [..., d], seen as rows, without a copy where the strides allow it."""
    shape = operands["gate"].shape
    size, d = shape[:-1].numel(), shape[-1] if shape else 1
    rows = {name: native.readable(x.reshape(1, size, 1, d)) for name, x in operands.items()}
    bfloat16 = operands["gate"].dtype == torch.bfloat16
    arguments = SwiGLU(size, d, torch.get_num_threads(), bfloat16)
    for name, x in rows.items():
        setattr(arguments, name, native.rows(x))
    native.run(kernel, arguments)
