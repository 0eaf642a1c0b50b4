"""The short convolution behind a projection, with its activation."""

import torch
from torch import Tensor, nn

from gated_deltanet import ops

from .features import FEATURE_MAPS


class ShortConv(nn.Module):
    """Each of d channels convolved with its own conv_size weights, then the activation, a name in FEATURE_MAPS.

    conv_size None: the activation only.
    """

    def __init__(self, d: int, conv_size: int | None, *, activation: str = "silu", bias: bool = False):
        super().__init__()
        self.activation = activation
        self.weight = None if conv_size is None else nn.Parameter(torch.empty(d, conv_size))
        self.bias = nn.Parameter(torch.empty(d)) if bias and conv_size is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in ± conv_size^−½, torch's own for a convolution of single channels."""
        for parameter in self.parameters():
            assert self.weight is not None
            nn.init.uniform_(parameter, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def forward(
        self, x: Tensor, state: Tensor | None = None, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x: [B, L, d]. state: [N, conv_size − 1, d], the inputs before the first token; zero if None."""
        if self.weight is None:
            return FEATURE_MAPS[self.activation](x), None
        weight, bias = self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)  # under autocast
        fused = "silu" if self.activation == "silu" else None
        y, state = ops.short_conv(x, weight, bias, state, activation=fused, cu_seqlens=cu_seqlens)
        return (y if fused else FEATURE_MAPS[self.activation](y)), state
