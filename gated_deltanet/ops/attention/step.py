"""Attention of one new token in every sequence, read where the cache holds its keys."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd.graph import increment_version

from ..checks import values_are_cheap
from ..library import without_autocast
from . import cpp
from .cache import KVCache

ROOM = 64  # slots: copies of one size come from memory freed before, ever larger ones from new pages (4 × slower)


def may_step(q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> bool:
    """Whether tokens [B, L, …] behind a cache are one each, nobody wants a gradient, and no graph is being made."""
    if q.shape[1] != 1 or torch.compiler.is_compiling() or isinstance(q, FakeTensor):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, cache.k, cache.v)))


def own_copy(cache: KVCache, window: int | None) -> KVCache:
    """What `step_` may write to. Without a window: the slots in use and at least one more."""
    if window is not None:
        return KVCache(*(x.clone() for x in cache))
    used = max(cache.length.tolist(), default=0)
    return KVCache(with_room(cache.k, used), with_room(cache.v, used), cache.length.clone())


def with_room(x: Tensor, used: int) -> Tensor:
    y = x.new_empty(len(x), (used // ROOM + 1) * ROOM, *x.shape[2:])
    y[:, :used] = x[:, :used]
    y[:, used:] = 0
    return y


@without_autocast
def step_(
    q: Tensor, k: Tensor, v: Tensor, cache: KVCache, window: int | None, *, native: bool
) -> tuple[Tensor, KVCache]:
    """`attention_step_` without its checks. native: by the kernel in C++."""
    length, W = cache.length, cache.k.shape[1]
    look = window is None or values_are_cheap(length)
    used = max(length.tolist(), default=0) + 1 if look else W
    if window is None and used > W:
        more = (0, 0, 0, 0, 0, max(1, W))
        cache = KVCache(F.pad(cache.k, more), F.pad(cache.v, more), length)
        W = cache.k.shape[1]

    if native and cache.k.is_contiguous() and cache.v.is_contiguous() and length.is_contiguous():
        o = cpp.step_(q, k, v, cache, window)
        increment_version(cache[:2])  # or autograd would not notice
        length += 1
        return o, cache
    slot, sequence = length % W, torch.arange(len(length), device=q.device)
    cache.k[sequence, slot], cache.v[sequence, slot] = k, v
    length += 1
    keys, values = (x[:, : min(used, W)].transpose(1, 2) for x in cache[:2])
    seen = torch.arange(keys.shape[2], device=q.device) < length[:, None, None, None]
    q = q.unflatten(1, (k.shape[1], -1))  # the query heads of one key head are its queries
    return F.scaled_dot_product_attention(q, keys, values, seen, scale=q.shape[-1] ** -0.5).flatten(1, 2), cache
