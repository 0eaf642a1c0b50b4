"""DeltaNet's token mixer (section 2.2): Gated DeltaNet's without decay and output gate."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from gated_deltanet.fields import check_positive, check_sizes

from .gated_deltanet import GatedDeltaNet
from .mixer import LLAMA, About, Shape, Size, Speed, heads


@dataclass(frozen=True)
class DeltaNet:
    n_heads: int
    d_k: int
    d_v: int
    conv_size: int | None = 4  # None: no short convolution
    beta_max: float = 1.0  # 2 allows negative eigenvalues

    about: ClassVar[About] = About(
        name="deltanet",
        title="DeltaNet",
        colour="plum",
        mark="s",
        shapes={
            "1.3b": LLAMA,
            "400m": Shape(28, 1024, 2880),
            "small": Shape(12, 384, 1056),
            "tiny": Shape(5, 256, 680),
            "nano": Shape(4, 96, 280),
        },
    )

    def __post_init__(self):
        check_sizes(self, "n_heads", "d_k", "d_v", "conv_size")
        check_positive(self, "beta_max", most=2)

    @property
    def speed(self) -> Speed:
        return Speed(cpu=0.16, gpu_per_byte=5.2)

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "DeltaNet":
        """Keys and values of d_model in all."""
        n_heads, d_head = heads(d_model, size.d_head)
        return cls(n_heads, d_head, d_head)

    @property
    def gated(self) -> GatedDeltaNet:
        """The same mixer by its other name."""
        options = {"conv_size": self.conv_size, "beta_max": self.beta_max}
        return GatedDeltaNet(self.n_heads, self.d_k, self.d_v, **options, decay=False, gate=False)

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module:
        return self.gated.build(d_model, layer=layer, n_layers=n_layers, norm_eps=norm_eps)

    def flops(self, length: int) -> float:
        return self.gated.flops(length)

    def state_bytes(self, length: int) -> int:
        return self.gated.state_bytes(length)
