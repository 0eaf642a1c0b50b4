"""Rotary position embedding. A token's position is how many tokens its sequence has seen before it."""

from functools import lru_cache

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


def angles(positions: Tensor, d: int, theta: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """[…, d / 2]: position · theta^(−2i/d). positions: […]."""
    speed = theta ** (-torch.arange(0, d, 2, dtype=dtype, device=positions.device) / d)
    return positions[..., None] * speed


def rotate(positions: Tensor, theta: float, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Turn the pair (x_i, x_{i + d/2}) of each head by the i-th of its position's `angles`.

    positions: [B, L]. tensors: [B, L, H, d], of any numbers of heads H.
    """
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    angle = angles(positions, tensors[0].shape[-1], theta, dtype)[:, :, None]  # [B, L, 1, d / 2]
    cos, sin = angle.cos(), angle.sin()

    def turned(x: Tensor) -> Tensor:
        a, b = x.to(dtype).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    return tuple(map(turned, tensors))


@lru_cache(maxsize=8)  # every layer of a model asks for the same, step after step
def table(count: int, d: int, theta: float) -> Tensor:
    """[count, d] float32, on the CPU: cosines and then sines of the `angles` of the first `count` positions."""
    angle = angles(torch.arange(count), d, theta)
    return torch.cat([angle.cos(), angle.sin()], -1)
