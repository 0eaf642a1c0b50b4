"""Mamba's selective scan (S6) as a recurrence: the specification every other form is measured against."""

import torch
from torch import Tensor


def step(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One token. x, dt: [N, D], A: [D, n], B, C: [N, n], h: [N, D, n]."""
    h = (dt[..., None] * A).exp() * h  # forget
    h = h + (dt * x)[..., None] * B[:, None, :]  # write x, as strongly as dt says
    return torch.einsum("bdn,bn->bd", h, C), h


def recurrence(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens in turn. x, dt: [N, L, D], A: [D, n], B, C: [N, L, n], h: [N, D, n]."""
    y = []
    for x_t, dt_t, B_t, C_t in zip(*(z.to(h.dtype).unbind(1) for z in (x, dt, B, C)), strict=True):
        y_t, h = step(x_t, dt_t, A, B_t, C_t, h)
        y.append(y_t)
    return torch.stack(y, 1).to(x.dtype) if y else torch.zeros_like(x), h
