"""Softmax attention as in Llama: rotary positions, grouped key heads; over all tokens, or a sliding window (SWA)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from gated_deltanet.fields import check_positive, check_sizes
from gated_deltanet.ops import KVCache, attention

from .mixer import HALF, LLAMA, About, Shape, Size, Speed, heads


@dataclass(frozen=True)
class Attention:
    n_heads: int
    d_head: int
    n_kv_heads: int | None = None  # divides n_heads; None: n_heads
    window: int | None = None  # tokens seen, the own one included; None: all
    rope_theta: float = 10000.0

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
        check_sizes(self, "n_heads", "d_head", "n_kv_heads", "window")
        check_positive(self, "rope_theta")
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
        return AttentionMixer(self, d_model)

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

    def __init__(self, config: Attention, d_model: int):
        super().__init__()
        self.config = c = config
        self.q_proj = nn.Linear(d_model, c.n_heads * c.d_head, bias=False)
        self.k_proj = nn.Linear(d_model, c.H_kv * c.d_head, bias=False)
        self.v_proj = nn.Linear(d_model, c.H_kv * c.d_head, bias=False)
        self.out_proj = nn.Linear(c.n_heads * c.d_head, d_model, bias=False)

    def forward(
        self, x: Tensor, state: KVCache | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, KVCache | None]:
        """x: [B, L, d_model] -> the same."""
        c = self.config
        q, k, v = (proj(x).unflatten(-1, (-1, c.d_head)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        options = {"window": c.window, "rope_theta": c.rope_theta, "cu_seqlens": cu_seqlens}
        o, cache = attention(q, k, v, state, **options, keep_cache=keep_state)
        return self.out_proj(o.flatten(2)), cache
