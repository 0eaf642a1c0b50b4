"""RetNet's token mixer: linear attention with one fixed decay a head, rotary positions, a norm of each head, a gate."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gated_deltanet.fields import check_positive, check_sizes
from gated_deltanet.ops import linear_attention
from gated_deltanet.ops.rotary import advance, positions, rotate

from .mixer import FLOAT, About, Gates, Shape, Size, Speed
from .norm import RMSNorm


@dataclass(frozen=True)
class RetNet:
    n_heads: int
    d_k: int
    d_v: int
    rope_theta: float = 10000.0

    about: ClassVar[About] = About(
        name="retnet",
        title="RetNet",
        colour="teal",
        mark="v",
        shapes={
            "1.3b": Shape(24, 2048, 2944),
            "400m": Shape(28, 1024, 1536),
            "small": Shape(12, 384, 560),
            "tiny": Shape(5, 256, 344),
            "nano": Shape(4, 96, 156),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v")
        check_positive(self, "rope_theta")
        if self.d_k % 2:
            raise ValueError(f"RetNet: d_k is {self.d_k}, expected an even number (rotary pairs)")

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.42, gpu_per_byte=17.2)  # not in the paper's Fig. 3: there as Mamba2

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "RetNet":
        return cls(d_model // size.d_retnet, size.d_retnet, 2 * size.d_retnet)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return RetNetMixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: write and read."""
        return 4 * self.n_heads * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        return FLOAT * self.n_heads * self.d_k * self.d_v + 8  # and the position, an int64


class RetNetState(NamedTuple):
    S: Tensor | None = None  # [N, H, d_k, d_v]
    length: Tensor | None = None  # [N] int64, the tokens seen so far


class RetNetMixer(nn.Module):
    """Head h forgets with α = 1 − 2^(−5−h). Its norm is the RMS norm of the head, without a mean.

    Two things are as in flash-linear-attention rather than in the authors' code (torchscale): the angles are Llama's,
    theta^(−2i/d) for the pair (i, i + d/2), where theirs are theta^(−i/(d/2 − 1)) for the pair (2i, 2i + 1); and the
    norm has a weight, where theirs has none.
    """

    State = RetNetState

    def __init__(self, config: RetNet, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        values = c.n_heads * c.d_v
        self.q_proj = nn.Linear(d_model, c.n_heads * c.d_k, bias=False)
        self.k_proj = nn.Linear(d_model, c.n_heads * c.d_k, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.gate_proj = nn.Linear(d_model, values, bias=False)
        self.out_norm = RMSNorm(c.d_v, norm_eps)
        self.out_proj = nn.Linear(values, d_model, bias=False)

    def reset_projections(self) -> None:
        """Its authors' start: Xavier's, much narrowed."""
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj):
            nn.init.xavier_uniform_(proj.weight, gain=2**-2.5)

    def forward(
        self, x: Tensor, state: RetNetState | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, RetNetState | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or RetNetState()
        at = positions(state.length, x, cu_seqlens)
        q, k, v = (proj(x).unflatten(-1, (c.n_heads, -1)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(at, c.rope_theta, q, k)
        o, S = linear_attention(q, k * c.d_k**-0.5, v, self.log_alpha(x), state.S, cu_seqlens=cu_seqlens)
        y = self.out_proj(self.out_norm(o, self.gate_proj(x).view_as(o)).flatten(2))
        return y, RetNetState(S, advance(state.length, x, cu_seqlens)) if keep_state else None

    def log_alpha(self, x: Tensor) -> Tensor:
        """[H], where x is, in float32 at least."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        heads = torch.arange(self.config.n_heads, dtype=dtype, device=x.device)
        return torch.log1p(-torch.exp2(-5 - heads))

    def gates(self, x: Tensor, state: RetNetState | None = None) -> Gates:
        """Fixed: the same for every token."""
        return Gates(self.log_alpha(x)[:, None].expand(*x.shape[:2], -1, 1))
