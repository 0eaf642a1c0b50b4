"""The gated RMS norm in C++ (csrc/gated_rms_norm.cpp)."""

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous


class RmsNorm(ctypes.Structure):
    """The arguments of gated_rms_norm_forward and gated_rms_norm_backward, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("tokens", "H", "d", "threads")),
        ("bfloat16", c_int32),
        ("eps", c_float),
        *((name, native.Rows) for name in ("x", "gate")),
        ("weight", c_void_p),
        *((name, native.Rows) for name in ("y", "dy", "dx", "dgate")),
        ("dweight", c_void_p),
    )


def forward(x, gate, weight, eps):
    inputs, y = _inputs(x, gate, weight), empty_contiguous(x)
    arguments = _arguments(*inputs, eps)
    arguments.y = native.rows(_by_heads(y))
    native.run("gated_rms_norm_forward", arguments)
    return y


def prepare_forward(
    x: Tensor, gate: Tensor | None, eps: float
) -> Callable[[Tensor, Tensor | None, Tensor, float], Tensor]:
    """`forward` of contiguous operands like these, the weight in float32."""
    d = x.shape[-1]
    rows, none = native.Rows(None, d, d), native.Rows()
    arguments = RmsNorm(
        x.shape[:-1].numel(), 1, d, torch.get_num_threads(), x.dtype == torch.bfloat16, eps, rows,
        none if gate is None else rows, None, rows,
    )  # fmt: skip
    call = native.prepare("gated_rms_norm_forward", arguments)

    def forward(x: Tensor, gate: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        operands = {} if gate is None else {"gate": gate}
        call.run(x=x, weight=weight, y=y, **operands)
        return y

    return forward


def backward(grads, x, gate, weight, eps):
    inputs, dy, dx = _inputs(x, gate, weight), _by_heads(grads[0]), empty_contiguous(x)
    dgate, dweight = None if gate is None else empty_contiguous(gate), torch.empty_like(inputs[2])
    arguments = _arguments(*inputs, eps)
    arguments.dy, arguments.dx = native.rows(dy), native.rows(_by_heads(dx))
    if dgate is not None:
        arguments.dgate = native.rows(_by_heads(dgate))
    arguments.dweight = dweight.data_ptr()
    native.run("gated_rms_norm_backward", arguments)
    return [grad for grad in (dx, dgate, dweight.to(weight.dtype)) if grad is not None]


def _inputs(x: Tensor, gate: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """What the kernels read."""
    return _by_heads(x), None if gate is None else _by_heads(gate), weight.float().contiguous()


def _by_heads(x: Tensor) -> Tensor:
    """[..., H, d] -> [1, tokens, H, d], a view where the strides allow it."""
    H = x.shape[-2] if x.ndim > 2 else 1
    return native.readable(x.reshape(1, x.shape[:-1].numel() // max(1, H), H, x.shape[-1]))


def _arguments(x: Tensor, gate: Tensor | None, weight: Tensor, eps: float) -> RmsNorm:
    _, tokens, H, d = x.shape
    gate_rows = native.Rows() if gate is None else native.rows(gate)
    return RmsNorm(
        tokens, H, d, torch.get_num_threads(), x.dtype == torch.bfloat16, eps, native.rows(x), gate_rows,
        weight.data_ptr(),
    )  # fmt: skip
