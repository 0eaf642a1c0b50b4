"""What a mixer is to the rest of the package: what others need to know of one stands in its own file.

docs/adding-a-mixer.md walks through it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

HALF, FLOAT = 2, 4  # bytes of a number: bfloat16 activations, float32 states


class Size(NamedTuple):
    """What the mixers of presets of one size have in common."""

    vocab_size: int  # 32,000: Llama 2's (section 4); 257: bytes and the end of text
    window: int  # of sliding-window attention, half the training length (section 4)
    d_head: int  # of attention, DeltaNet, HGRN2 (whose authors take 128) and linear attention, about
    d_retnet: int  # of RetNet's keys: 256, its authors say; at least 4 heads, for its decays follow their number
    gdn_heads: int  # 9 in the official code
    d_state: int  # of Mamba2: 128, its authors say
    d_mamba2: int  # of Mamba2's heads: 64, its authors say


class Shape(NamedTuple):
    """Of a preset. Without MLPs n_layers makes the number of parameters right, else d_ff, but where it is the authors'.

    n_layers and d_model are such that d_ff / d_model is within a quarter of what it is at 1.3b: the paper's balance
    between mixers and MLPs.
    """

    n_layers: int
    d_model: int
    d_ff: int


LLAMA = Shape(24, 2048, 5632)  # as in flash-linear-attention's 1.3B configs: 8/3 d_model, rounded up to 256


class About(NamedTuple):
    """Names, looks and presets of a mixer."""

    name: str  # of the presets that have no other mixer: "gdn" of gdn-tiny
    title: str  # in figures: the paper's name
    colour: str  # in figures: the paper's, where it has one
    mark: str  # in figures, as matplotlib names it
    shapes: Mapping[str, Shape]  # of the presets, by size


class Speed(NamedTuple):
    """The rate of a mixer's own FLOPs in a training step, with the norms, convolutions and gates around them.

    The GPU's are fitted to the paper's Fig. 3, the CPU's to a measured one (plan/speed.py).
    """

    cpu: float  # share of the rate of torch.mm
    gpu: float = 0.0  # share of the GPU's peak, of what its arithmetic limits
    gpu_per_byte: float = 0.0  # FLOPs for each byte of the GPU's bandwidth, of what its memory limits


class Gates(NamedTuple):
    """What a mixer's module tells of some tokens, for inspection."""

    log_alpha: Tensor | None = None  # [B, L, H, d]: d = 1, or the channels that decay on their own
    beta: Tensor | None = None  # [B, L, H]


class Mixer(Protocol):
    """The config of a mixer: a frozen dataclass of its sizes and switches.

    The module that `build` makes has a `State` and a `forward` (`gated_deltanet.layers`). If its state has a matrix,
    that is `state.S`, [N, H, d_k, d_v]. If it has gates, `gates(x, state=None) -> Gates` gives those of the tokens x,
    the module's input, computed as `forward` does.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    about: ClassVar[About]

    @property
    def speed(self) -> Speed: ...

    @classmethod
    def sized(cls, d_model: int, size: Size) -> "Mixer":
        """The mixer of a preset."""
        ...

    def build(self, d_model: int, *, layer: int = 0, n_layers: int = 1, norm_eps: float = 1e-5) -> nn.Module: ...

    def flops(self, length: int) -> float:
        """Of what is no product with a weight: forward, per token, averaged over a sequence of this length."""
        ...

    def state_bytes(self, length: int) -> int:
        """Of one sequence after so many tokens: float32 matrices, bfloat16 keys, values and inputs of convolutions."""
        ...


def heads(d_model: int, about: int) -> tuple[int, int]:
    """How many heads of about this size, and their size, fill d_model."""
    n_heads = max(1, round(d_model / about))
    return n_heads, d_model // n_heads


def conv_bytes(conv_size: int | None, channels: int) -> int:
    """Of the inputs that short convolutions keep of one sequence."""
    return HALF * ((conv_size or 1) - 1) * channels
