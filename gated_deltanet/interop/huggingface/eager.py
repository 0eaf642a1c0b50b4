"""Softmax attention with all of its weights, as `attn_implementation="eager"` and `output_attentions` ask for."""

import torch
from torch import Tensor

from gated_deltanet.models.state import unpack
from gated_deltanet.ops import KVCache
from gated_deltanet.ops.attention.cache import append
from gated_deltanet.ops.rotary import positions, rotate


class Eager:
    """In the place of `ops.attention` in one call of a model; keeps the weights of each layer.

    Weights are of columns of the padded batch: [B, H, L, S], S counting the columns read before, too; they are zero at
    padding and at what a window hides. The outputs are made of them, so gradients flow through what is kept.
    before: [B, S − L], now: [B, L], true at tokens, of columns read before and now; now may be None: all are tokens.
    """

    def __init__(self, before: Tensor, now: Tensor | None):
        self.before, self.now = before, now
        self.weights: list[Tensor] = []

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KVCache | None = None,
        *,
        window: int | None = None,
        rope_theta: float | None = None,
        cu_seqlens: Tensor | None = None,
        keep_cache: bool = True,
    ) -> tuple[Tensor, KVCache | None]:
        """As `ops.attention` says; packed sequences are the rows of `now`."""
        N = len(self.before)
        if cache is None:
            none = torch.zeros(N, dtype=torch.int64, device=q.device)
            cache = KVCache(k.new_zeros(N, 0, *k.shape[2:]), v.new_zeros(N, 0, *v.shape[2:]), none)
        if rope_theta is not None:
            q, k = rotate(positions(cache.length, q, cu_seqlens), rope_theta, q, k)
        after = append(cache, k, v, cu_seqlens, window) if keep_cache else None
        if self.now is None:
            return self.attend(q, k, v, cache, window), after
        q, k, v = (unpack(x, self.now) for x in (q, k, v))
        return self.attend(q, k, v, cache, window)[self.now][None], after

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: KVCache, window: int | None) -> Tensor:
        """[B, L, H, d_v]. q: [B, L, H, d], k: [B, L, H_kv, d], v: [B, L, H_kv, d_v], turned and in columns."""
        now = torch.ones_like(q[..., 0, 0], dtype=torch.bool) if self.now is None else self.now
        mask = torch.cat([places(self.before, cache.length), now], 1)  # [B, S]
        token = mask.cumsum(1) - 1  # of its sequence, in or before each column
        k, v = (behind(cached, x, token) for cached, x in ((cache.k, k), (cache.v, v)))
        age = token[:, -q.shape[1] :, None] - token[:, None]  # [B, L, S]
        seen = (age >= 0) & (age < (window or mask.shape[1])) & mask[:, None] & now[..., None]
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        scores = torch.einsum("blhd,bshd->bhls", q, k) * q.shape[-1] ** -0.5
        least = torch.finfo(scores.dtype).min
        dtype = torch.promote_types(q.dtype, torch.float32)
        weights = scores.masked_fill(~seen[:, None], least).softmax(-1, dtype).to(v.dtype) * seen[:, None]
        self.weights.append(weights)
        return torch.einsum("bhls,bshv->blhv", weights, v)


def places(before: Tensor, length: Tensor) -> Tensor:
    """Where the tokens read before are, [B, S]: where `before` says, or at the end if it does not know of all."""
    if torch.equal(before.sum(1), length):
        return before
    S = before.shape[1]
    return torch.arange(S, device=before.device) >= S - length[:, None]


def behind(cached: Tensor, x: Tensor, token: Tensor) -> Tensor:
    """What is cached, in the columns of its tokens, and x: [B, L, H, d] -> [B, S, H, d]. token: [B, S]."""
    slots = token[:, : token.shape[1] - x.shape[1]].clamp(min=0) % max(cached.shape[1], 1)
    if not slots.shape[1]:
        return x
    return torch.cat([cached.gather(1, slots[..., None, None].expand(-1, -1, *cached.shape[2:])), x], 1)
