"""HGRN2's token mixer: linear attention with a forget gate f for each key channel, and 1 − f for the key."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gated_deltanet.fields import check_sizes
from gated_deltanet.ops import linear_attention

from .mixer import FLOAT, LLAMA, About, Gates, Shape, Size, Speed, heads
from .norm import RMSNorm


@dataclass(frozen=True)
class HGRN2:
    n_heads: int
    d_k: int  # the expansion ratio
    d_v: int

    about: ClassVar[About] = About(
        name="hgrn2",
        title="HGRN2",
        colour="saddlebrown",
        mark="X",
        shapes={
            "1.3b": LLAMA,
            "400m": Shape(28, 1024, 2880),
            "small": Shape(12, 384, 1072),
            "tiny": Shape(5, 256, 680),
            "nano": Shape(4, 96, 284),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v")

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.14, gpu_per_byte=17.2)  # not in the paper's Fig. 3: there as Mamba2

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "HGRN2":
        """Keys and values of d_model in all."""
        n_heads, d_head = heads(d_model, size.d_head)
        return cls(n_heads, d_head, d_head)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return HGRN2Mixer(self, d_model, layer / n_layers, norm_eps)

    def flops(self, length: int) -> float:
        """Of the rule, forward, per token: write and read."""
        return 4 * self.n_heads * self.d_k * self.d_v

    def state_bytes(self, length: int) -> int:
        return FLOAT * self.n_heads * self.d_k * self.d_v


class HGRN2State(NamedTuple):
    S: Tensor | None = None  # [N, H, d_k, d_v]


class HGRN2Mixer(nn.Module):
    """f = bound + (1 − bound) σ(f_proj x), where the bound is learned for each key channel, and rises with the layer.

    Its authors learn one softmax over the layers: layer i of n takes the sum of the first i shares, at first i / n.
    That couples the layers' parameters. Here each layer learns its own sum, bound = σ(logit(depth) + lower_bound), with
    depth = i / n and lower_bound zero at first: the same start, and every bound theirs can reach. Layer 0 has none.
    """

    State = HGRN2State

    def __init__(self, config: HGRN2, d_model: int, depth: float, norm_eps: float):
        super().__init__()
        self.config = c = config
        self.depth = depth
        keys, values = c.n_heads * c.d_k, c.n_heads * c.d_v
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.f_proj = nn.Linear(d_model, keys, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.lower_bound = nn.Parameter(torch.empty(keys)) if depth > 0 else None
        self.out_norm = RMSNorm(values, norm_eps)
        self.out_proj = nn.Linear(values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.lower_bound is not None:
            nn.init.zeros_(self.lower_bound)

    def log_forget(self, x: Tensor) -> Tensor:
        """log f: [B, L, H · d_k], in float32 at least, without ever taking the logarithm of 0."""
        raw = self.f_proj(x)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.lower_bound is None:
            return F.logsigmoid(raw)
        bound = self.lower_bound.to(raw.dtype) + math.log(self.depth / (1 - self.depth))
        log_f = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + F.logsigmoid(raw))
        return log_f.clamp(max=0.0)  # rounded, it can be an eps above

    def gates(self, x: Tensor, state: HGRN2State | None = None) -> Gates:
        return Gates(self.log_forget(x).unflatten(-1, (self.config.n_heads, -1)))

    def forward(
        self, x: Tensor, state: HGRN2State | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, HGRN2State | None]:
        """x: [B, L, d_model] -> the same."""
        c, state = self.config, state or HGRN2State()
        q, v, log_f = F.silu(self.q_proj(x)), self.v_proj(x), self.log_forget(x)
        k = -torch.expm1(log_f).to(q.dtype)
        q, k, v, log_f = (z.unflatten(-1, (c.n_heads, -1)) for z in (q, k, v, log_f))  # [B, L, H, d]
        o, S = linear_attention(q, k, v, log_f, state.S, cu_seqlens=cu_seqlens)
        return self.out_proj(self.out_norm(o.flatten(2))), HGRN2State(S) if keep_state else None
