"""The gated RMS norm and its gradient on blocks of rows that stay in a CPU's cache."""

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import accumulator

# Values alive at once. Measured on one core, [65536, 128], forward and backward: 3 × faster than the composition.
BLOCK_ON_CPU, BLOCK_ELSEWHERE = 2**16, 2**26


def blocks(x: Tensor | None) -> Iterable[Any]:
    """[..., d] -> views [n, d] of some rows each. None -> None each time."""
    if x is None:
        return repeat(None)
    step = (BLOCK_ON_CPU if x.device.type == "cpu" else BLOCK_ELSEWHERE) // max(1, x.shape[-1])
    return x.reshape(-1, x.shape[-1]).split(max(1, step)) if x.numel() else ()


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x over its root mean square, and one over that."""
    r = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return x * r, r


def forward(x, gate, weight, eps):
    dtype, y = accumulator(x), torch.empty_like(x, memory_format=torch.contiguous_format)
    weight = weight.to(dtype)
    for x_, gate_, y_ in zip(blocks(x), blocks(gate), blocks(y), strict=False):
        z, _ = normalise(x_.to(dtype), eps)
        z *= weight
        y_.copy_(z if gate_ is None else z.mul_(F.silu(gate_.to(dtype))))
    return y


def backward(grads, x, gate, weight, eps):
    dtype, dx = accumulator(x), torch.empty_like(x, memory_format=torch.contiguous_format)
    w, dweight = weight.to(dtype), torch.zeros_like(weight, dtype=dtype)
    dgate = None if gate is None else torch.empty_like(dx)
    for x_, gate_, dy_, dx_, dgate_ in zip(*map(blocks, (x, gate, grads[0], dx, dgate)), strict=False):
        z, r = normalise(x_.to(dtype), eps)
        dy = dy_.to(dtype)
        if gate_ is not None:
            g = gate_.to(dtype)
            dgate_.copy_(torch.ops.aten.silu_backward((dy * z).mul_(w), g))
            dy = dy * F.silu(g)
        dweight += (dy * z).sum(0)
        dz = dy * w
        dx_.copy_((dz - z * (dz * z).mean(-1, keepdim=True)).mul_(r))
    return [grad for grad in (dx, dgate, dweight.to(weight.dtype)) if grad is not None]
