"""One layer: norm, token mixer, norm, MLP, each pair in a residual branch (Llama's macro architecture, section 3.4)."""

from typing import Any

from torch import Tensor, nn

from gated_deltanet.layers.mlp import MLP
from gated_deltanet.layers.norm import RMSNorm

from .config import ModelConfig


class Block(nn.Module):
    """It does not know which mixer it holds. With d_ff = 0 there is no MLP."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        d_model, eps = config.d_model, config.norm_eps
        self.mixer_norm = RMSNorm(d_model, eps)
        self.mixer = config.mixer(layer).build(d_model, layer=layer, n_layers=config.n_layers, norm_eps=eps)
        self.mlp_norm = RMSNorm(d_model, eps) if config.d_ff else None
        self.mlp = MLP(d_model, config.d_ff) if config.d_ff else None

    def forward(
        self, x: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, Any]:
        """x: [B, L, d_model] -> the same. The rest is the mixer's (`gated_deltanet.layers`)."""
        y, state = self.mixer(self.mixer_norm(x), state, cu_seqlens=cu_seqlens, keep_state=keep_state)
        x = x + y
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.mlp(self.mlp_norm(x))
        return x, state
