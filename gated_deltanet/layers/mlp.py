"""The channel mixer between token mixers: SwiGLU, as in Llama."""

from torch import Tensor, nn

from gated_deltanet.ops import swiglu


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)). x: [B, L, d_model]; d_ff channels inside."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.out_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
