"""Causal softmax attention in C++: csrc/attention_forward.cpp, csrc/attention_backward.cpp, csrc/attention_step.cpp."""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous, operator
from ..packing import sequence_ends
from ..rotary import table
from .cache import KVCache

SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor k_cache, Tensor v_cache, Tensor length, Tensor? cu_seqlens, int? window,"
    " float? rope_theta, bool training) -> (Tensor, Tensor)"
)
ALL = 2**40  # a window over all tokens, and small enough to be added to


class Attention(ctypes.Structure):
    """The arguments of the kernels of attention, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "H", "H_kv", "d", "d_v", "threads", "window", "capacity", "bfloat16")),
        *((name, c_void_p) for name in ("ends", "lengths")),
        *((name, native.Rows) for name in ("q", "k", "v")),
        *((name, c_void_p) for name in ("k_cache", "v_cache", "turns")),
        ("o", native.Rows),
        ("softmax", c_void_p),
        *((name, native.Rows) for name in ("do_", "dq", "dk", "dv")),
        *((name, c_void_p) for name in ("dk_cache", "dv_cache")),
    )


def attend(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta=None):
    """rope_theta: q and k are turned to their positions as they are read, as `rotary.rotate` does; the cache is not."""
    training = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, k_cache, v_cache))
    return OPERATOR(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta, training)[0]


def forward(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta, training):
    """o, and in training of each token and head the largest score and the sum of exp relative to it."""
    results = o, softmax = fake(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta, training)
    if o.numel():
        call = Call(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta)
        call.run("attention_forward", o=o, **({"softmax": softmax} if training else {}))
    return results


def fake(q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta, training):
    B, L, H = q.shape[:3]
    kept = (B * L, H, 2) if training else (0,)
    return q.new_empty(B, L, H, v.shape[-1]), q.new_empty(kept, dtype=torch.float32)


def backward(grads, q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta, training):
    do, o, softmax = grads
    inputs = (q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta)
    if not do.numel():
        return [torch.zeros_like(x) for x in inputs[:5]]
    if not training:  # nothing was kept
        o, softmax = forward(*inputs, True)
    results = {f"d{name}": empty_contiguous(x) for name, x in (("q", q), ("k", k), ("v", v))}
    results |= {
        f"d{name}_cache": torch.zeros_like(x, memory_format=torch.contiguous_format)
        for name, x in (("k", k_cache), ("v", v_cache))
    }
    Call(*inputs).run("attention_backward", o=o, softmax=softmax, do_=native.readable(do), **results)
    return list(results.values())


OPERATOR = operator("attention_cpp", SCHEMA, forward, fake, backward, keeps=1, rereads=True)


class Call:
    """A kernel's arguments but for what it writes, with the tensors they point to."""

    def __init__(self, q, k, v, k_cache, v_cache, length, cu_seqlens, window, rope_theta):
        lengths, ends = length.contiguous(), sequence_ends("attention", q, cu_seqlens)
        self.tensors = {
            "ends": ends,
            "lengths": lengths,
            **{name: native.readable(x) for name, x in (("q", q), ("k", k), ("v", v))},
            **{name: x.contiguous() for name, x in (("k_cache", k_cache), ("v_cache", v_cache))},
        }
        if rope_theta is not None:
            last = int((lengths + ends.diff()).max())
            self.tensors["turns"] = table(1 << last.bit_length(), q.shape[-1], rope_theta)
        self.arguments = arguments(q, k, v, k_cache, window)
        native.point(self.arguments, **self.tensors)

    def run(self, kernel: str, **results: Tensor) -> None:
        native.point(self.arguments, **results)
        native.run(kernel, self.arguments)


def arguments(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, window: int | None) -> Attention:
    """Sizes only. q: […, H, d], k: […, H_kv, d], v: […, H_kv, d_v], k_cache: [N, W, H_kv, d]."""
    N, capacity, H_kv, d = k_cache.shape
    bfloat16 = q.dtype == torch.bfloat16
    return Attention(
        N, q.shape[-2], H_kv, d, v.shape[-1], torch.get_num_threads(), min(window or ALL, ALL), capacity, bfloat16
    )


def step_(q: Tensor, k: Tensor, v: Tensor, cache: KVCache, window: int | None) -> Tensor:
    """One token of each sequence: written into the cache, which has room for it. o: [N, H, d_v].

    q: [N, H, d], k: [N, H_kv, d], v: [N, H_kv, d_v]. The cache is contiguous.
    """
    o = q.new_empty(*q.shape[:2], v.shape[-1])
    tokens = {name: native.readable(x[:, None]) for name, x in (("q", q), ("k", k), ("v", v))}
    call = arguments(q, k, v, cache.k, window)
    native.point(call, **tokens, o=o[:, None], k_cache=cache.k, v_cache=cache.v, lengths=cache.length)
    if o.numel():
        native.run("attention_step", call)
    return o
