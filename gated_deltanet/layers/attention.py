"""Softmax attention as in Llama: rotary positions, grouped key heads; over all tokens, or a sliding window (SWA).

With norms of queries and keys, a gate and positions in a part of each head it is Qwen3.5's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gated_deltanet.fields import check_choice, check_positive, check_sizes, check_switches
from gated_deltanet.ops import KVCache, attention
from gated_deltanet.ops.rotary import positions, rotate

from .mixer import HALF, LLAMA, About, Shape, Size, Speed, heads
from .norm import RMSNorm

QK_NORMS = ("none", "head", "all")


@dataclass(frozen=True)
class Attention:
    n_heads: int
    d_head: int
    n_kv_heads: int | None = None  # divides n_heads; None: n_heads
    window: int | None = None  # tokens seen, the own one included; None: all
    rope_theta: float | None = 10000.0  # None: no positions
    rope_dims: int | None = None  # of each head, the first that are turned to their position; None: all
    qk_norm: str = "none"  # RMS norm of q and k, of each head by itself ("head") or of all at once ("all")
    gate: bool = False  # the heads' outputs times σ of a projection
    post_norm: bool = False  # its block norms what mixer and MLP write to the stream, not what they read, as OLMo does

    about: ClassVar[About] = About(
        name="transformer",
        title="Transformer++",
        colour="blue",
        mark="o",
        shapes={
            "1.3b": LLAMA,
            "400m": Shape(28, 1024, 2880),
            "small": Shape(12, 384, 1072),
            "tiny": Shape(5, 256, 680),
            "nano": Shape(4, 96, 284),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_head", "n_kv_heads", "window", "rope_dims")
        if self.rope_theta is not None:
            check_positive(self, "rope_theta")
        check_choice(self, "qk_norm", QK_NORMS)
        check_switches(self, "gate", "post_norm")
        if self.rope_dims is not None and (self.rope_dims % 2 or self.rope_dims > self.d_head or not self.rope_theta):
            expected = f"an even number up to d_head, {self.d_head}, and a rope_theta"
            raise ValueError(f"Attention: rope_dims is {self.rope_dims}, expected {expected}")
        if self.d_head % 2:
            raise ValueError(f"Attention: d_head is {self.d_head}, expected an even number (rotary pairs)")
        if self.n_heads % self.H_kv:
            raise ValueError(f"Attention: n_kv_heads is {self.H_kv}, expected a divisor of n_heads, {self.n_heads}")

    @property
    def H_kv(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.4 if self.window else 0.65, gpu=0.22)

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "Attention":
        return cls(*heads(d_model, size.d_head))

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return AttentionMixer(self, d_model, norm_eps)

    def flops(self, length: int) -> float:
        """Of scores and sums, forward, per token, averaged over a sequence of this length."""
        window = min(self.window or length, length)
        seen = window * (length - (window - 1) / 2) / length
        return 4 * self.n_heads * self.d_head * seen

    def state_bytes(self, length: int) -> int:
        """Keys and values of the tokens that can still be seen."""
        return HALF * 2 * self.H_kv * self.d_head * min(self.window or length, length)


class AttentionMixer(nn.Module):
    """Its state is a KVCache, whose length gives the positions."""

    State = KVCache

    def __init__(self, config: Attention, d_model: int, norm_eps: float):
        super().__init__()
        self.config = c = config
        self.q_proj = nn.Linear(d_model, c.n_heads * c.d_head, bias=False)
        self.k_proj = nn.Linear(d_model, c.H_kv * c.d_head, bias=False)
        self.v_proj = nn.Linear(d_model, c.H_kv * c.d_head, bias=False)
        width = {"none": (), "head": (c.d_head, c.d_head), "all": (c.n_heads * c.d_head, c.H_kv * c.d_head)}[c.qk_norm]
        self.q_norm, self.k_norm = (RMSNorm(d, norm_eps) for d in width) if width else (None, None)
        self.gate_proj = nn.Linear(d_model, c.n_heads * c.d_head, bias=False) if c.gate else None
        self.out_proj = nn.Linear(c.n_heads * c.d_head, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: KVCache | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        keep_state: bool = True,
        attend: Callable[..., tuple[Tensor, KVCache | None]] = attention,
    ) -> tuple[Tensor, KVCache | None]:
        """x: [B, L, d_model] -> the same. attend: what to call in the place of `ops.attention`."""
        c, theta = self.config, self.config.rope_theta
        q = self.heads(self.q_proj(x), self.q_norm)
        k = self.heads(self.k_proj(x), self.k_norm)
        v = self.heads(self.v_proj(x))
        if c.rope_dims is not None and theta is not None:
            at = positions(None if state is None else state.length, x, cu_seqlens)
            (q, k), theta = turn_part(at, theta, c.rope_dims, q, k), None
        options = {"window": c.window, "rope_theta": theta, "cu_seqlens": cu_seqlens}
        o, cache = attend(q, k, v, state, **options, keep_cache=keep_state)
        o = o.flatten(2)
        return self.out_proj(o * self.gate_proj(x).sigmoid() if self.gate_proj else o), cache

    def heads(self, z: Tensor, norm: RMSNorm | None = None) -> Tensor:
        """[B, L, H · d] -> [B, L, H, d], normed."""
        if norm and self.config.qk_norm == "all":
            z = norm(z)
        z = z.unflatten(-1, (-1, self.config.d_head))
        return norm(z) if norm and self.config.qk_norm == "head" else z


def turn_part(at: Tensor, theta: float, dims: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """`rotate` the first `dims` numbers of each head and leave the others. at: [B, L]. tensors: [B, L, H, d]."""
    turned = rotate(at, theta, *(x[..., :dims] for x in tensors))
    return tuple(torch.cat([part, x[..., dims:]], -1) for part, x in zip(turned, tensors, strict=True))
