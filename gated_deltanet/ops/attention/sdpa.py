"""Causal softmax attention by torch's fused kernel, on blocks of queries and only the keys these see.

With a window time and memory are linear in the length; a packed row costs what its sequences cost one by one.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import accumulator

BLOCK = 256  # measured on one core, L = 4096: best or nearly so for windows of 512 and 2048, forward and backward


class Group(NamedTuple):
    """Sequences that run as one batch: with as many tokens, and as many in the cache."""

    rows: slice  # of q, k, v
    tokens: slice  # in these rows
    sequences: slice  # of the cache
    slots: Tensor  # of the cached tokens that are still seen, oldest first


def groups(
    q: Tensor, k_cache: Tensor, length: Tensor, cu_seqlens: Tensor | None, window: int | None
) -> Iterator[Group]:
    W, whole = max(1, k_cache.shape[1]), slice(None)
    lengths = length.tolist()

    def slots(n: int) -> Tensor:
        return torch.arange(n - min(n, (window or n + 1) - 1), n, device=q.device) % W

    if cu_seqlens is not None:
        for i, (a, b) in enumerate(pairwise(cu_seqlens.tolist())):
            yield Group(whole, slice(a, b), slice(i, i + 1), slots(lengths[i]))
    elif len(set(lengths)) == 1:
        yield Group(whole, whole, whole, slots(lengths[0]))
    else:
        for i, n in enumerate(lengths):
            yield Group(slice(i, i + 1), whole, slice(i, i + 1), slots(n))


def blocks(queries: int, keys: int, window: int | None) -> Iterator[tuple[slice, slice]]:
    """Queries, the last of all tokens, with the keys they see."""
    past = keys - queries  # if there are none, the kernel skips what is not seen by itself
    step = max(1, queries) if window is None and not past else BLOCK
    for a in range(0, queries, step):
        b = min(a + step, queries)
        yield slice(a, b), slice(max(0, past + a + 1 - (window or keys)), past + b)


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """The last n tokens of m. q: [B, n, H, d], k: [B, m, H_kv, d], v: [B, m, H_kv, d_v] -> [B, n, H, d_v]."""
    n, m, d, d_v = q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]
    if d != d_v:  # the fused kernel wants them equal
        q, k, v = (F.pad(x, (0, max(d, d_v) - x.shape[-1])) for x in (q, k, v))
    mask = None
    if n != m or (window is not None and window < m):
        seen = torch.ones(n, m, dtype=torch.bool, device=q.device)
        mask = seen.tril(m - n).triu(m - n + 1 - (window or m))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    o = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=d**-0.5, **grouped)
    return o.transpose(1, 2)[..., :d_v]


def forward(q, k, v, k_cache, v_cache, length, cu_seqlens, window):
    o = q.new_empty(*q.shape[:3], v.shape[-1])
    for rows, tokens, sequences, slots in groups(q, k_cache, length, cu_seqlens, window):
        q_, o_ = q[rows, tokens], o[rows, tokens]
        keys = torch.cat([k_cache[sequences, slots], k[rows, tokens]], 1)
        values = torch.cat([v_cache[sequences, slots], v[rows, tokens]], 1)
        for queries, seen in blocks(q_.shape[1], keys.shape[1], window):
            o_[:, queries] = attend(q_[:, queries], keys[:, seen], values[:, seen], window)
    return o


def backward(grads, q, k, v, k_cache, v_cache, length, cu_seqlens, window):
    dq, dk, dv, dk_cache, dv_cache = (torch.zeros_like(x) for x in (q, k, v, k_cache, v_cache))
    for rows, tokens, sequences, slots in groups(q, k_cache, length, cu_seqlens, window):
        q_, do_, dq_ = q[rows, tokens], grads[0][rows, tokens], dq[rows, tokens]
        keys = torch.cat([k_cache[sequences, slots], k[rows, tokens]], 1)
        values = torch.cat([v_cache[sequences, slots], v[rows, tokens]], 1)
        dkeys, dvalues = (torch.zeros_like(x, dtype=accumulator(x)) for x in (keys, values))
        for queries, seen in blocks(q_.shape[1], keys.shape[1], window):
            vjp = torch.func.vjp(partial(attend, window=window), q_[:, queries], keys[:, seen], values[:, seen])[1]
            dq_[:, queries], dk_seen, dv_seen = vjp(do_[:, queries])
            dkeys[:, seen] += dk_seen
            dvalues[:, seen] += dv_seen
        past = len(slots)
        dk_cache[sequences, slots], dk[rows, tokens] = dkeys[:, :past].to(k.dtype), dkeys[:, past:].to(k.dtype)
        dv_cache[sequences, slots], dv[rows, tokens] = dvalues[:, :past].to(v.dtype), dvalues[:, past:].to(v.dtype)
    return dq, dk, dv, dk_cache, dv_cache
