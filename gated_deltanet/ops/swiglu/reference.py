"""SwiGLU as it is written: the specification every other form is measured against."""

import torch
import torch.nn.functional as F


def forward(gate, up):
    dtype = torch.float64 if gate.dtype == torch.float64 else torch.float32
    return (F.silu(gate.to(dtype)) * up.to(dtype)).to(gate.dtype)
