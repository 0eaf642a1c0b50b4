"""Gated DeltaNet's token mixer: Fig. 1 (right) and section 3.4, with every switch of table S.1."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gated_deltanet.fields import check_choice, check_multiple, check_positive, check_sizes, check_switches
from gated_deltanet.ops import delta_product, gated_delta_mix, gated_delta_rule, swiglu

from .decay import Decay
from .features import FEATURE_MAPS, NORMS, normalise
from .mixer import FLOAT, About, Gates, Shape, Size, Speed, conv_bytes
from .norm import RMSNorm
from .short_conv import ShortConv


@dataclass(frozen=True)
class GatedDeltaNet:
    n_heads: int  # of q and k
    d_k: int
    d_v: int
    n_v_heads: int | None = None  # of v and the gates, a multiple of n_heads; None: n_heads
    conv_size: int | None = 4  # None: no short convolution
    decay: bool = True  # False: the delta rule, α = 1
    gate: bool = True  # of the output
    out_norm: bool = True
    feature_map: str = "silu"  # of q and k: silu, relu or elu+1
    qk_norm: str = "l2"  # or l1
    beta_max: float = 1.0  # 2 allows negative eigenvalues
    n_h: int = 1  # delta steps a token: more than one is DeltaProduct
    beta_bias: bool = False  # of β before the sigmoid: official code has one, which starts at 0
    out_eps: float | None = None  # of out_norm; None: the model's norm_eps

    about: ClassVar[About] = About(
        name="gdn",
        title="Gated DeltaNet",
        colour="#5c7232",
        mark="^",
        shapes={
            "1.3b": Shape(16, 2400, 5888),  # official code
            "400m": Shape(26, 1024, 2560),
            "small": Shape(11, 384, 944),
            "tiny": Shape(4, 256, 760),
            "nano": Shape(4, 96, 212),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v", "n_v_heads", "conv_size", "n_h")
        check_multiple(self, "n_v_heads", of="n_heads")
        check_switches(self, "decay", "gate", "out_norm", "beta_bias")
        check_choice(self, "feature_map", FEATURE_MAPS)
        check_choice(self, "qk_norm", NORMS)
        check_positive(self, "beta_max", most=2)
        if self.out_eps is not None:
            check_positive(self, "out_eps")

    @property
    def H_v(self) -> int:
        return self.n_v_heads or self.n_heads

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.3, gpu_per_byte=10.0)

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "GatedDeltaNet":
        """Keys of ¾ d_model and values of 1½ d_model in all (official code): the layer has 6 d_model² parameters."""
        d_k = 3 * d_model // 4 // size.gdn_heads
        return cls(size.gdn_heads, d_k, 2 * d_k)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return GatedDeltaNetMixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: recall, correct and read, n_h times but for the reading."""
        return (4 * self.n_h + 2) * self.H_v * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        keys, values = self.n_heads * self.d_k, self.H_v * self.d_v
        convolved = (1 + self.n_h) * keys + self.n_h * values
        return FLOAT * self.H_v * self.d_k * self.d_v + conv_bytes(self.conv_size, convolved)


class GatedDeltaNetState(NamedTuple):
    S: Tensor | None = None  # [N, H_v, d_k, d_v]
    q_conv: Tensor | None = None  # [N, conv_size − 1, H · d_k]
    k_conv: Tensor | None = None  # [N, conv_size − 1, n_h · H · d_k]
    v_conv: Tensor | None = None  # [N, conv_size − 1, n_h · H_v · d_v]


class GatedDeltaNetMixer(nn.Module):
    State = GatedDeltaNetState

    def __init__(self, config: GatedDeltaNet, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        keys, values = c.n_heads * c.d_k, c.H_v * c.d_v
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.k_proj = nn.Linear(d_model, c.n_h * keys, bias=False)
        self.v_proj = nn.Linear(d_model, c.n_h * values, bias=False)
        self.q_conv = ShortConv(keys, c.conv_size, activation=c.feature_map)
        self.k_conv = ShortConv(c.n_h * keys, c.conv_size, activation=c.feature_map)
        self.v_conv = ShortConv(c.n_h * values, c.conv_size)
        self.b_proj = nn.Linear(d_model, c.n_h * c.H_v, bias=c.beta_bias)
        self.a_proj = nn.Linear(d_model, c.H_v, bias=False) if c.decay else None
        self.decay = Decay(c.H_v, least=0.0) if c.decay else None
        self.gate_proj = nn.Linear(d_model, values, bias=False) if c.gate else None
        self.out_norm = RMSNorm(c.d_v, c.out_eps or norm_eps) if c.out_norm else None
        self.out_proj = nn.Linear(values, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: GatedDeltaNetState | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, GatedDeltaNetState | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or GatedDeltaNetState()
        q, q_conv = self.q_conv(self.q_proj(x), state.q_conv, cu_seqlens=cu_seqlens)
        k, k_conv = self.k_conv(self.k_proj(x), state.k_conv, cu_seqlens=cu_seqlens)
        v, v_conv = self.v_conv(self.v_proj(x), state.v_conv, cu_seqlens=cu_seqlens)
        q, k, v = (z.unflatten(-1, (-1, d)) for z, d in ((q, c.d_k), (k, c.d_k), (v, c.d_v)))  # [B, L, H, d]
        o, S = self.mix(x, q, k, v, state.S, cu_seqlens)
        y = self.out_proj(self.finish(x, o).flatten(2))
        return y, GatedDeltaNetState(S, q_conv, k_conv, v_conv) if keep_state else None

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, S: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """o: [B, L, H_v, d_v] and the state. k, v: [B, L, n_h · H, d]."""
        c, b = self.config, self.b_proj(x)
        if self.decay and self.a_proj and c.qk_norm == "l2" and c.n_h == 1:  # norms and gates within the kernel
            gates = self.a_proj(x), b, self.decay.A_log, self.decay.dt_bias
            return gated_delta_mix(q, k, v, *gates, S, beta_max=c.beta_max, cu_seqlens=cu_seqlens)
        q, k = normalise(q, c.qk_norm) * c.d_k**-0.5, normalise(k, c.qk_norm)
        log_alpha = self.decay.A() * self.decay.dt(self.a_proj(x)) if self.decay and self.a_proj else None
        beta = c.beta_max * b.to(torch.promote_types(b.dtype, torch.float32)).sigmoid()
        if c.n_h == 1:
            return gated_delta_rule(q, k, v, log_alpha, beta, S, cu_seqlens=cu_seqlens)
        k, v, beta = (z.unflatten(2, (c.n_h, -1)) for z in (k, v, beta))
        return delta_product(q, k, v, log_alpha, beta, S, cu_seqlens=cu_seqlens)

    def gates(self, x: Tensor, state: GatedDeltaNetState | None = None) -> Gates:
        """DeltaProduct writes n_h times a token: β is the mean."""
        c = self.config
        beta = c.beta_max * self.b_proj(x).float().sigmoid()
        beta = beta.unflatten(-1, (c.n_h, -1)).mean(-2)
        if self.decay is None or self.a_proj is None:
            return Gates(None, beta)
        return Gates((self.decay.A() * self.decay.dt(self.a_proj(x)))[..., None], beta)

    def finish(self, x: Tensor, o: Tensor) -> Tensor:
        """Norm and gate. o: [B, L, H_v, d_v] -> the same."""
        gate = self.gate_proj(x).view_as(o) if self.gate_proj else None
        if self.out_norm:
            return self.out_norm(o, gate)
        return o if gate is None else swiglu(gate, o)
