"""Longhorn's rule (table 1, with its scalar β) in Gated DeltaNet's block.

Longhorn's authors set their rule in Mamba's block. Here it stands where the gated delta rule does, so that a comparison
is of the rules: keys need no norm (ε kᵀk < 1 for keys of any length), and there is no decay to parameterise.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from gated_deltanet.fields import check_sizes
from gated_deltanet.ops import longhorn

from .gated_deltanet import GatedDeltaNet
from .mixer import FLOAT, About, Gates, Size, Speed, conv_bytes
from .norm import RMSNorm
from .short_conv import ShortConv


@dataclass(frozen=True)
class Longhorn:
    n_heads: int
    d_k: int
    d_v: int
    conv_size: int | None = 4  # None: no short convolution

    about: ClassVar[About] = About(
        name="longhorn",
        title="Longhorn",
        colour="darkgoldenrod",
        mark=">",
        shapes=GatedDeltaNet.about.shapes,  # which has n_heads · d_model more, for α
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v", "conv_size")

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.3, gpu_per_byte=10.0)  # in neither Fig. 3: as Gated DeltaNet

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "Longhorn":
        d_k = 3 * d_model // 4 // size.gdn_heads
        return cls(size.gdn_heads, d_k, 2 * d_k)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return LonghornMixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: recall, correct and read."""
        return 6 * self.n_heads * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        keys, values = self.n_heads * self.d_k, self.n_heads * self.d_v
        return FLOAT * keys * self.d_v + conv_bytes(self.conv_size, 2 * keys + values)


class LonghornState(NamedTuple):
    S: Tensor | None = None  # [N, H, d_k, d_v]
    q_conv: Tensor | None = None  # [N, conv_size − 1, H · d_k]
    k_conv: Tensor | None = None  # [N, conv_size − 1, H · d_k]
    v_conv: Tensor | None = None  # [N, conv_size − 1, H · d_v]


class LonghornMixer(nn.Module):
    State = LonghornState

    def __init__(self, config: Longhorn, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        keys, values = c.n_heads * c.d_k, c.n_heads * c.d_v
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.k_proj = nn.Linear(d_model, keys, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.q_conv = ShortConv(keys, c.conv_size)
        self.k_conv = ShortConv(keys, c.conv_size)
        self.v_conv = ShortConv(values, c.conv_size)
        self.b_proj = nn.Linear(d_model, c.n_heads, bias=False)
        self.gate_proj = nn.Linear(d_model, values, bias=False)
        self.out_norm = RMSNorm(c.d_v, norm_eps)
        self.out_proj = nn.Linear(values, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: LonghornState | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, LonghornState | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or LonghornState()
        q, q_conv = self.q_conv(self.q_proj(x), state.q_conv, cu_seqlens=cu_seqlens)
        k, k_conv = self.k_conv(self.k_proj(x), state.k_conv, cu_seqlens=cu_seqlens)
        v, v_conv = self.v_conv(self.v_proj(x), state.v_conv, cu_seqlens=cu_seqlens)
        q, k, v = (z.unflatten(-1, (c.n_heads, -1)) for z in (q * c.d_k**-0.5, k, v))  # [B, L, H, d]
        o, S = longhorn(q, k, v, self.b_proj(x).sigmoid(), state.S, cu_seqlens=cu_seqlens)
        y = self.out_proj(self.out_norm(o, self.gate_proj(x).view_as(o)).flatten(2))
        return y, LonghornState(S, q_conv, k_conv, v_conv) if keep_state else None

    def gates(self, x: Tensor, state: LonghornState | None = None) -> Gates:
        return Gates(None, self.b_proj(x).float().sigmoid())
