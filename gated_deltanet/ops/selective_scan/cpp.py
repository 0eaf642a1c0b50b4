"""Mamba's selective scan in C++ (csrc/selective_scan.cpp)."""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous, operator
from ..packing import sequence_ends

SEGMENT = 64  # tokens between the states kept for backward
SCHEMA = (
    "(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor state, Tensor? cu_seqlens, bool training)"
    " -> (Tensor, Tensor, Tensor)"
)


class Scan(ctypes.Structure):
    """The arguments of selective_scan_forward and selective_scan_backward, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "D", "n", "parts", "channels", "threads", "segment", "bfloat16")),
        ("ends", c_void_p),
        *((name, native.Rows) for name in ("x", "dt", "B", "C")),
        *((name, c_void_p) for name in ("A", "state")),
        ("y", native.Rows),
        *((name, c_void_p) for name in ("last_state", "checkpoints")),
        *((name, native.Rows) for name in ("dy", "dx", "ddt")),
        *((name, c_void_p) for name in ("dBC", "dA", "dlast_state", "dstate")),
    )


def scan(x, dt, A, B, C, state, cu_seqlens):
    inputs = (x, dt, A, B, C, state)
    training = torch.is_grad_enabled() and any(z.requires_grad for z in inputs)
    return OPERATOR(*inputs, cu_seqlens, training)[:2]


def forward(x, dt, A, B, C, state, cu_seqlens, training):
    """y and the last state; in training also the states before every segment."""
    tokens, A, state = _readable(x, dt, B, C), A.contiguous(), state.contiguous()
    ends = sequence_ends("selective_scan", x, cu_seqlens)
    y, last_state, checkpoints = results = fake(x, dt, A, B, C, state, cu_seqlens, training)
    arguments = _arguments(tokens, A, state, ends)
    arguments.y, arguments.last_state = _rows(y), last_state.data_ptr()
    if training:
        arguments.checkpoints = checkpoints.zero_().data_ptr()  # its padding, too: results must not differ by chance
    native.run("selective_scan_forward", arguments)
    return results


def fake(x, dt, A, B, C, state, cu_seqlens, training):
    (batch, L), (N, D, n) = x.shape[:2], state.shape
    kept = (batch * L // SEGMENT + N, -(-n // 8) * 8, -(-D // 16) * 16) if training else (0,)
    return empty_contiguous(x), empty_contiguous(state), state.new_empty(kept)


def backward(grads, x, dt, A, B, C, state, cu_seqlens, training):
    dy, dlast_state, checkpoints = grads
    if not training:  # nothing was kept
        checkpoints = forward(x, dt, A, B, C, state, cu_seqlens, True)[2]
    A, state, dlast_state = A.contiguous(), state.contiguous(), dlast_state.contiguous()
    tokens, ends = _readable(x, dt, B, C, dy), sequence_ends("selective_scan", x, cu_seqlens)
    dx, ddt, dstate = (empty_contiguous(z) for z in (x, dt, state))
    arguments = _arguments(tokens[:4], A, state, ends)
    dBC = state.new_empty(arguments.parts, *B.shape[:2], 2, B.shape[2])  # a sum over channels, part by part
    dA = torch.empty_like(state)  # and one over tokens, sequence by sequence
    for name, z in (("dy", tokens[4]), ("dx", dx), ("ddt", ddt)):
        setattr(arguments, name, _rows(z))
    kept = {"checkpoints": checkpoints, "dBC": dBC, "dA": dA, "dlast_state": dlast_state, "dstate": dstate}
    native.point(arguments, **kept)
    native.run("selective_scan_backward", arguments)
    dB, dC = dBC.sum(0).to(B.dtype).unbind(2)
    return dx, ddt, dA.sum(0), dB, dC, dstate


def _readable(*tokens: Tensor) -> list[Tensor]:
    return [native.readable(z[:, :, None]) for z in tokens]


def _rows(z: Tensor) -> native.Rows:
    return native.rows(z[:, :, None] if z.ndim == 3 else z)


def _arguments(tokens: list[Tensor], A: Tensor, state: Tensor, ends: Tensor) -> Scan:
    """Channels go in ranges of at most 256, whose states stay in the cache; in eight or so where there are fewer."""
    N, D, n = state.shape
    channels = min(256, max(16, -(-D // 8 // 16) * 16))
    return Scan(
        N, D, n, -(-D // channels), channels, torch.get_num_threads(), SEGMENT, tokens[0].dtype == torch.bfloat16,
        ends.data_ptr(), *map(_rows, tokens), A.data_ptr(), state.data_ptr(),
    )  # fmt: skip


OPERATOR = operator("selective_scan_cpp", SCHEMA, forward, fake, backward, keeps=1)
