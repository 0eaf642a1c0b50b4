"""The gated RMS norm as it is written: the specification every other form is measured against."""

import torch
import torch.nn.functional as F


def forward(x, gate, weight, eps):
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = x.to(dtype)
    y = z / (z.square().mean(-1, keepdim=True) + eps).sqrt() * weight.to(dtype)
    return (y if gate is None else y * F.silu(gate.to(dtype))).to(x.dtype)
