"""Mamba's token mixer: the selective scan (S6) in a gated block."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gated_deltanet.fields import check_sizes
from gated_deltanet.ops import selective_scan, swiglu

from .decay import Decay
from .mixer import FLOAT, About, Gates, Shape, Size, Speed, conv_bytes
from .short_conv import ShortConv


@dataclass(frozen=True)
class Mamba:
    d_inner: int
    dt_rank: int
    d_state: int = 16
    conv_size: int = 4

    about: ClassVar[About] = About(
        name="mamba",
        title="Mamba1",
        colour="orange",
        mark="D",
        shapes={
            "1.3b": Shape(47, 2048, 0),  # 48 in its authors' 1.4b, whose vocabulary is larger
            "400m": Shape(55, 1024, 0),
            "small": Shape(23, 384, 0),
            "tiny": Shape(9, 256, 0),
            "nano": Shape(7, 96, 0),
        },
    )

    def __post_init__(self):
        check_sizes(self, "d_inner", "dt_rank", "d_state", "conv_size")

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.085, gpu_per_byte=1.8)

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "Mamba":
        return cls(d_inner=2 * d_model, dt_rank=-(-d_model // 16))

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return MambaMixer(self, d_model)

    def flops(self, length: int) -> float:
        """Of the scan, forward, per token: decay, write and read, and dt · A."""
        return 7 * self.d_inner * self.d_state

    def state_bytes(self, length: int) -> int:
        return FLOAT * self.d_inner * self.d_state + conv_bytes(self.conv_size, self.d_inner)


class MambaState(NamedTuple):
    h: Tensor | None = None  # [N, d_inner, d_state]
    conv: Tensor | None = None  # [N, conv_size − 1, d_inner]

    @property
    def S(self) -> Tensor | None:
        """h as the matrix of one head: [N, 1, d_inner, d_state]."""
        return None if self.h is None else self.h[:, None]


class MambaMixer(nn.Module):
    State = MambaState

    def __init__(self, config: Mamba, d_model: int):
        super().__init__()
        self.config = c = config
        self.in_proj = nn.Linear(d_model, 2 * c.d_inner, bias=False)
        self.conv = ShortConv(c.d_inner, c.conv_size, bias=True)
        self.x_proj = nn.Linear(c.d_inner, c.dt_rank + 2 * c.d_state, bias=False)
        self.dt_proj = nn.Linear(c.dt_rank, c.d_inner, bias=False)  # its bias is decay.dt_bias
        self.decay = Decay(c.d_inner, c.d_state)
        self.D = nn.Parameter(torch.empty(c.d_inner))
        self.out_proj = nn.Linear(c.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.D)
        nn.init.uniform_(self.dt_proj.weight, -(self.config.dt_rank**-0.5), self.config.dt_rank**-0.5)

    def forward(
        self, x: Tensor, state: MambaState | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, MambaState | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or MambaState()
        z, gate = self.in_proj(x).chunk(2, -1)
        z, conv = self.conv(z, state.conv, cu_seqlens=cu_seqlens)
        raw_dt, B, C = self.x_proj(z).split([c.dt_rank, c.d_state, c.d_state], -1)
        dt = self.decay.dt(self.dt_proj(raw_dt))
        y, h = selective_scan(z, dt, self.decay.A(), B, C, state.h, cu_seqlens=cu_seqlens)
        y = swiglu(gate, y + self.D.to(y.dtype) * z)
        return self.out_proj(y), MambaState(h, conv) if keep_state else None

    def gates(self, x: Tensor, state: MambaState | None = None) -> Gates:
        """Mamba has no heads: one, of all d_inner · d_state channels."""
        z, _ = self.conv(self.in_proj(x).chunk(2, -1)[0], state and state.conv)
        raw_dt = self.x_proj(z)[..., : self.config.dt_rank]
        dt = self.decay.dt(self.dt_proj(raw_dt))
        return Gates((dt[..., None] * self.decay.A()).flatten(2)[:, :, None])
