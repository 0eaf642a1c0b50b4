"""What attention remembers: a ring of keys and values for each sequence."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import values_are_cheap


class KVCache(NamedTuple):
    """The last W tokens of N sequences, token t in slot t % W. Slots nobody has written are zero and never read.

    With a window W = window. Without one W is the capacity, at least every length, so that token t is in slot t.
    """

    k: Tensor  # [N, W, H_kv, d]
    v: Tensor  # [N, W, H_kv, d_v]
    length: Tensor  # [N] int64, the tokens seen so far


def append(cache: KVCache, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, window: int | None) -> KVCache:
    """A new cache with the tokens of k, v: [B, L, H_kv, …] behind the old ones.

    Without a window it has room for L more (of a packed row: for its longest sequence, where that is cheap to see).
    """
    N, (B, L) = len(cache.length), k.shape[:2]
    if cu_seqlens is None:
        first = torch.arange(B, device=k.device) * L
        count = torch.full_like(cache.length, L)
    else:
        first, count = cu_seqlens[:-1].long(), cu_seqlens.long().diff()
    longest = int(count.max()) if cu_seqlens is not None and values_are_cheap(count) else L
    W = window or cache.k.shape[1] + longest
    length = cache.length + count

    last = length[:, None] - 1
    token = last - (last - torch.arange(W, device=k.device)) % max(W, 1)  # [N, W] the latest token of each slot
    is_new = (token >= cache.length[:, None])[..., None, None]
    source = (first[:, None] + token - cache.length[:, None]).clamp(min=0)

    def write(ring: Tensor, x: Tensor) -> Tensor:
        ring = F.pad(ring, (0, 0, 0, 0, 0, W - ring.shape[1]))
        return torch.where(is_new, x.flatten(0, 1)[source], ring) if N and L else ring.clone()

    return KVCache(write(cache.k, k), write(cache.v, v), length)
