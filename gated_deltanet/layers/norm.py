"""RMS norm, plain and gated."""

import torch
from torch import Tensor, nn

from gated_deltanet.ops import gated_rms_norm


class RMSNorm(nn.Module):
    """x / rms(x) · weight, and with a gate · silu(gate). x, gate: [..., d]."""

    def __init__(self, d: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return gated_rms_norm(x, gate, self.weight, eps=self.eps)
