"""Mamba2's token mixer: SSD, which is linear attention with a scalar decay (q = C, k = B, v = Δ x)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gated_deltanet.fields import check_multiple, check_sizes
from gated_deltanet.ops import linear_attention, swiglu

from .decay import Decay
from .mixer import FLOAT, About, Gates, Shape, Size, Speed, conv_bytes
from .norm import RMSNorm
from .short_conv import ShortConv


@dataclass(frozen=True)
class Mamba2:
    n_heads: int  # of x; n_heads · d_v is the inner width
    d_k: int  # the state size, of B and C
    d_v: int  # the head size, of x
    n_groups: int = 1  # heads of B and C
    conv_size: int = 4

    about: ClassVar[About] = About(
        name="mamba2",
        title="Mamba2",
        colour="red",
        mark="p",
        shapes={
            "1.3b": Shape(48, 2048, 0),  # its authors' 1.3b
            "400m": Shape(56, 1024, 0),
            "small": Shape(22, 384, 0),
            "tiny": Shape(9, 256, 0),
            "nano": Shape(7, 96, 0),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v", "n_groups", "conv_size")
        check_multiple(self, "n_heads", of="n_groups")

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.22, gpu_per_byte=17.2)

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "Mamba2":
        return cls(2 * d_model // size.d_mamba2, size.d_state, size.d_mamba2)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return Mamba2Mixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: write and read."""
        return 4 * self.n_heads * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        values, keys = self.n_heads * self.d_v, self.n_groups * self.d_k
        return FLOAT * values * self.d_k + conv_bytes(self.conv_size, values + 2 * keys)


class Mamba2State(NamedTuple):
    S: Tensor | None = None  # [N, H, d_k, d_v]
    conv: Tensor | None = None  # [N, conv_size − 1, H · d_v + 2 · n_groups · d_k]


class Mamba2Mixer(nn.Module):
    """The gate comes before the norm, which is of each group by itself, as in mamba_ssm."""

    State = Mamba2State

    def __init__(self, config: Mamba2, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        values, keys = c.n_heads * c.d_v, c.n_groups * c.d_k
        self.widths = [values, values + 2 * keys, c.n_heads]  # of gate, xBC, dt
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv = ShortConv(values + 2 * keys, c.conv_size, bias=True)
        self.decay = Decay(c.n_heads)
        self.D = nn.Parameter(torch.empty(c.n_heads))
        self.out_norm = RMSNorm(values, norm_eps, n_groups=c.n_groups)
        self.out_proj = nn.Linear(values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.D)

    def forward(
        self, x: Tensor, state: Mamba2State | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, Mamba2State | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or Mamba2State()
        gate, xBC, raw_dt = self.in_proj(x).split(self.widths, -1)
        xBC, conv = self.conv(xBC, state.conv, cu_seqlens=cu_seqlens)
        v, k, q = xBC.split([c.n_heads * c.d_v, c.n_groups * c.d_k, c.n_groups * c.d_k], -1)
        q, k, v = (z.unflatten(-1, (-1, d)) for z, d in ((q, c.d_k), (k, c.d_k), (v, c.d_v)))  # [B, L, H, d]
        dt = self.decay.dt(raw_dt)
        dt_v = (dt[..., None] * v).to(v.dtype)
        o, S = linear_attention(q, k, dt_v, self.decay.A() * dt, state.S, cu_seqlens=cu_seqlens)
        o = o + self.D.to(o.dtype)[:, None] * v
        y = self.out_proj(self.out_norm(swiglu(gate, o.flatten(2))))
        return y, Mamba2State(S, conv) if keep_state else None

    def gates(self, x: Tensor, state: Mamba2State | None = None) -> Gates:
        raw_dt = self.in_proj(x).split(self.widths, -1)[-1]
        return Gates((self.decay.A() * self.decay.dt(raw_dt))[..., None])
