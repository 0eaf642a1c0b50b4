"""The short convolution in C++ (csrc/short_conv.cpp)."""

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous
from ..packing import even_ends, sequence_ends


class ShortConv(ctypes.Structure):
    """The arguments of short_conv_forward and short_conv_backward, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "D", "K", "threads")),
        *((name, c_int32) for name in ("bfloat16", "silu")),
        ("ends", c_void_p),
        ("x", native.Rows),
        *((name, c_void_p) for name in ("taps", "bias", "state")),
        ("y", native.Rows),
        ("last_state", c_void_p),
        *((name, native.Rows) for name in ("dy", "dx")),
        *((name, c_void_p) for name in ("dlast_state", "dstate", "dtaps")),
    )


def forward(x, weight, bias, state, activation, cu_seqlens):
    x, _, _, state, _ = inputs = _inputs(x, weight, bias, state, cu_seqlens)
    y, last_state = map(empty_contiguous, (x, state))
    arguments = _arguments(*inputs, activation)
    arguments.y, arguments.last_state = native.rows(y), last_state.data_ptr()
    native.run("short_conv_forward", arguments)
    return y.squeeze(2), last_state


def prepare_forward(
    x: Tensor, weight: Tensor, activation: str | None
) -> Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]:
    """`forward` of (x, weight, bias, state), contiguous operands like these, in float32 and not packed."""
    (B, L, D), K, threads = x.shape, weight.shape[1], torch.get_num_threads()
    rows, ends = native.Rows(None, D, D), even_ends(B, L)
    arguments = ShortConv(B, D, K, threads, False, activation == "silu", ends.data_ptr(), rows, y=rows)
    call = native.prepare("short_conv_forward", arguments, ends)

    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        y, last_state, taps = torch.empty_like(x), torch.empty_like(state), weight.mT.contiguous()
        others = {} if bias is None else {"bias": bias}
        call.run(x=x, taps=taps, state=state, y=y, last_state=last_state, **others)
        return y, last_state

    return forward


def backward(grads, x, weight, bias, state, activation, cu_seqlens):
    dy, dlast_state = native.readable(grads[0].unsqueeze(2)), grads[1].contiguous()
    x, taps, _, state, _ = inputs = _inputs(x, weight, bias, state, cu_seqlens)
    dx, dstate = map(empty_contiguous, (x, state))
    dtaps = taps.new_empty(len(taps) + 1, taps.shape[1])  # the last row is dbias
    arguments = _arguments(*inputs, activation)
    arguments.dy, arguments.dx = native.rows(dy), native.rows(dx)
    arguments.dlast_state, arguments.dstate = dlast_state.data_ptr(), dstate.data_ptr()
    arguments.dtaps = dtaps.data_ptr()
    native.run("short_conv_backward", arguments)
    dweight, dbias = dtaps[:-1].mT.to(weight.dtype), dtaps[-1].to(weight.dtype)
    return (dx.squeeze(2), dweight, dstate) if bias is None else (dx.squeeze(2), dweight, dbias, dstate)


def _inputs(x, weight, bias, state, cu_seqlens) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """What the kernels read: x as [B, L, 1, D], taps [K, D] and bias [D] in float32, state, the sequences' ends."""
    bias = None if bias is None else bias.float().contiguous()
    taps = weight.mT.float().contiguous()
    ends = sequence_ends("short_conv", x, cu_seqlens)
    return native.readable(x.unsqueeze(2)), taps, bias, state.contiguous(), ends


def _arguments(
    x: Tensor, taps: Tensor, bias: Tensor | None, state: Tensor, ends: Tensor, activation: str | None
) -> ShortConv:
    (K, D), threads = taps.shape, torch.get_num_threads()
    return ShortConv(
        len(ends) - 1, D, K, threads, x.dtype == torch.bfloat16, activation == "silu", ends.data_ptr(),
        native.rows(x), taps.data_ptr(), None if bias is None else bias.data_ptr(), state.data_ptr(),
    )  # fmt: skip
