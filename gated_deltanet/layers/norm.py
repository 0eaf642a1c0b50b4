"""RMS norm, plain and gated."""

import torch
from torch import Tensor, nn

from gated_deltanet.ops import gated_rms_norm
from gated_deltanet.ops.library import autocast_dtype


class RMSNorm(nn.Module):
    """x / rms(x) · weight, and with a gate · silu(gate). x, gate: [..., d].

    Under autocast the result is in its dtype: cast once, not by every projection that reads it.
    """

    def __init__(self, d: int, eps: float = 1e-5, *, n_groups: int = 1):
        """n_groups: how many equal parts of d have an rms of their own."""
        super().__init__()
        self.eps = eps
        self.n_groups = n_groups
        self.weight = nn.Parameter(torch.empty(d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        y, dtype = self.norm(x, gate), autocast_dtype(x.device)
        return y if dtype is None or x.dtype == torch.float64 else y.to(dtype)

    def norm(self, x: Tensor, gate: Tensor | None) -> Tensor:
        n = self.n_groups
        if n == 1:
            return gated_rms_norm(x, gate, self.weight, eps=self.eps)
        gates = (None,) * n if gate is None else gate.chunk(n, -1)
        groups = zip(x.chunk(n, -1), gates, self.weight.chunk(n), strict=True)
        return torch.cat([gated_rms_norm(*group, eps=self.eps) for group in groups], -1)
