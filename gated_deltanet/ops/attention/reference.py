"""Causal softmax attention with all scores at once: the specification every other form is measured against."""

import torch
from torch import Tensor

from ..packing import numbers


def sequence(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """The last l tokens of one sequence of m. q: [l, H, d], k: [m, H_kv, d], v: [m, H_kv, d_v] -> [l, H, d_v]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    token = torch.arange(len(k), device=k.device)
    age = token[len(k) - len(q) :, None] - token  # [l, m]
    seen = (age >= 0) & (age < (window or len(k)))
    scores = torch.einsum("lhd,mhd->hlm", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hlm,mhv->lhv", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def forward(q, k, v, k_cache, v_cache, length, cu_seqlens, window):
    """One sequence after another, each behind what its row of the cache holds, oldest token first."""
    (B, L, H, _), W = q.shape, k_cache.shape[1]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    ends = [i * L for i in range(B + 1)] if cu_seqlens is None else numbers(cu_seqlens)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    o = []
    for i, n in enumerate(numbers(length)):
        tokens, slots = slice(ends[i], ends[i + 1]), [t % W for t in range(max(0, n - W), n)]
        keys, values = torch.cat([k_cache[i, slots], k[tokens]]), torch.cat([v_cache[i, slots], v[tokens]])
        o.append(sequence(q[tokens].to(dtype), keys.to(dtype), values.to(dtype), window))
    return (torch.cat(o) if o else q).to(v.dtype).reshape(B, L, H, v.shape[-1])
