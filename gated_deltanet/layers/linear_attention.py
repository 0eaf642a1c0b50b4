"""Linear attention (section 2.1, table 1): no decay, features elu + 1, an RMS norm of each head for the denominator."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from gated_deltanet import ops
from gated_deltanet.fields import check_choice, check_sizes

from .attention import Attention
from .features import FEATURE_MAPS
from .mixer import FLOAT, About, Size, Speed, heads
from .norm import RMSNorm


@dataclass(frozen=True)
class LinearAttention:
    n_heads: int
    d_k: int
    d_v: int
    feature_map: str = "elu+1"  # of q and k: silu, relu or elu+1

    about: ClassVar[About] = About(
        name="linear-attention",
        title="Linear attention",
        colour="black",
        mark="<",
        shapes=Attention.about.shapes,  # four square matrices in either mixer
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v")
        check_choice(self, "feature_map", FEATURE_MAPS)

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.42, gpu_per_byte=17.2)  # in neither Fig. 3: as RetNet

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "LinearAttention":
        """Keys and values of d_model in all."""
        n_heads, d_head = heads(d_model, size.d_head)
        return cls(n_heads, d_head, d_head)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return LinearAttentionMixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: write and read."""
        return 4 * self.n_heads * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        return FLOAT * self.n_heads * self.d_k * self.d_v


class LinearAttentionState(NamedTuple):
    S: Tensor | None = None  # [N, H, d_k, d_v]


class LinearAttentionMixer(nn.Module):
    State = LinearAttentionState

    def __init__(self, config: LinearAttention, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        self.q_proj = nn.Linear(d_model, c.n_heads * c.d_k, bias=False)
        self.k_proj = nn.Linear(d_model, c.n_heads * c.d_k, bias=False)
        self.v_proj = nn.Linear(d_model, c.n_heads * c.d_v, bias=False)
        self.out_norm = RMSNorm(c.d_v, norm_eps)
        self.out_proj = nn.Linear(c.n_heads * c.d_v, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: LinearAttentionState | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, LinearAttentionState | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or LinearAttentionState()
        phi = FEATURE_MAPS[c.feature_map]
        q, k, v = (proj(x).unflatten(-1, (c.n_heads, -1)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        o, S = ops.linear_attention(phi(q) * c.d_k**-0.5, phi(k), v, None, state.S, cu_seqlens=cu_seqlens)
        y = self.out_proj(self.out_norm(o).flatten(2))
        return y, LinearAttentionState(S) if keep_state else None
