"""Rotary position embedding. A token's position is how many tokens its sequence has seen before it."""

import torch
from torch import Tensor


def positions(length: Tensor | None, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[B, L] (or [1, L] if all rows agree). length: [N] tokens seen before, 0 if None. x: [B, L, …]."""
    here = torch.arange(x.shape[1], device=x.device)
    if cu_seqlens is None:
        return here[None] if length is None else length[:, None] + here
    first = cu_seqlens[:-1].to(x.device)
    start = -first if length is None else length - first
    return (here + start.repeat_interleave(cu_seqlens.diff().to(x.device), output_size=x.shape[1]))[None]


def advance(length: Tensor | None, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N] int64: the tokens seen after x: [B, L, …]."""
    if cu_seqlens is None:
        new = torch.full((x.shape[0],), x.shape[1], device=x.device)
    else:
        new = cu_seqlens.diff().to(x.device, torch.int64)
    return new if length is None else length + new


def rotate(q: Tensor, k: Tensor, positions: Tensor, theta: float) -> tuple[Tensor, Tensor]:
    """Turn the pair (x_i, x_{i + d/2}) of each head by position · theta^(−2i/d).

    q, k: [B, L, H, d], of any two numbers of heads H. positions: [B, L].
    """
    d, dtype = q.shape[-1], torch.promote_types(q.dtype, torch.float32)
    speed = theta ** (-torch.arange(0, d, 2, dtype=dtype, device=q.device) / d)
    angle = positions[..., None, None] * speed  # [B, L, 1, d / 2]
    cos, sin = angle.cos(), angle.sin()

    def turned(x: Tensor) -> Tensor:
        a, b = x.to(dtype).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    return turned(q), turned(k)
