"""Named models: every architecture of the paper at five sizes, counted alike, so that comparisons are fair.

Of one size all architectures have the same number of parameters within 3 %, embeddings (tied) included: 1.3 B, 400 M,
25 M, 4 M and 0.5 M. Head sizes follow the authors of each mixer; depth, width and d_ff are the table SHAPES.
"""

from collections.abc import Callable
from typing import NamedTuple

from gated_deltanet.layers import (
    HGRN2,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba,
    Mamba2,
    Mixer,
    RetNet,
)
from gated_deltanet.naming import unknown

from .config import ModelConfig


class Size(NamedTuple):
    """What the mixers of one size have in common."""

    vocab_size: int  # 32,000: Llama 2's (section 4); 257: bytes and the end of text
    window: int  # of sliding-window attention, half the training length (section 4)
    d_head: int  # of attention, DeltaNet, HGRN2 (whose authors take 128) and linear attention
    d_retnet: int  # of RetNet's keys: 256, its authors say
    gdn_heads: int  # 9 in the official code; 6 of 128 at 400m, table S.1's "Head Dim 128"
    d_state: int  # of Mamba2: 128, its authors say
    d_mamba2: int  # of Mamba2's heads: 64, its authors say


SIZES = {
    "1.3b": Size(32000, 2048, 128, 256, gdn_heads=9, d_state=128, d_mamba2=64),
    "400m": Size(32000, 2048, 128, 256, gdn_heads=6, d_state=128, d_mamba2=64),
    "small": Size(8192, 1024, 64, 128, gdn_heads=3, d_state=128, d_mamba2=64),
    "tiny": Size(257, 256, 64, 128, gdn_heads=3, d_state=64, d_mamba2=64),
    "nano": Size(257, 64, 32, 32, gdn_heads=3, d_state=48, d_mamba2=32),
}


def gdn(d_model: int, size: Size) -> GatedDeltaNet:
    """Keys of ¾ d_model and values of 1½ d_model in all (official code): the layer has 6 d_model² parameters."""
    # there b_proj has a bias, n_heads parameters more; ours has none, as in flash-linear-attention
    d_k = 3 * d_model // 4 // size.gdn_heads
    return GatedDeltaNet(size.gdn_heads, d_k, 2 * d_k)


def longhorn(d_model: int, size: Size) -> Longhorn:
    d_k = 3 * d_model // 4 // size.gdn_heads
    return Longhorn(size.gdn_heads, d_k, 2 * d_k)


def retnet(d_model: int, size: Size) -> RetNet:
    return RetNet(d_model // size.d_retnet, size.d_retnet, 2 * size.d_retnet)


def mamba(d_model: int, size: Size) -> Mamba:
    return Mamba(d_inner=2 * d_model, dt_rank=-(-d_model // 16))


def mamba2(d_model: int, size: Size) -> Mamba2:
    return Mamba2(2 * d_model // size.d_mamba2, size.d_state, size.d_mamba2)


def attention(d_model: int, size: Size) -> Attention:
    return Attention(d_model // size.d_head, size.d_head)


def swa(d_model: int, size: Size) -> Attention:
    return Attention(d_model // size.d_head, size.d_head, window=size.window)


def square(mixer: Callable[[int, int, int], Mixer]) -> Callable[[int, Size], Mixer]:
    """Keys and values of d_model in all."""
    return lambda d_model, size: mixer(d_model // size.d_head, size.d_head, size.d_head)


MIXERS: dict[str, tuple[Callable[[int, Size], Mixer], ...]] = {
    "retnet": (retnet,),
    "hgrn2": (square(HGRN2),),
    "mamba": (mamba,),
    "mamba2": (mamba2,),
    "deltanet": (square(DeltaNet),),
    "gdn": (gdn,),
    "transformer": (attention,),
    "samba": (mamba, swa),
    "gdn-h1": (gdn, swa),  # section 3.4
    "gdn-h2": (mamba2, gdn, swa),  # section 3.4
    "linear-attention": (square(LinearAttention),),
    "longhorn": (longhorn,),
    "gdn-swa-mamba2": (gdn, swa, mamba2),  # table S.2, as are the next two
    "gdn-mamba2-swa": (gdn, mamba2, swa),
    "mamba2-swa-gdn": (mamba2, swa, gdn),
}


class Shape(NamedTuple):
    """d_ff makes the count right, but where it is the authors'; without MLPs n_layers does."""

    n_layers: int
    d_model: int
    d_ff: int


LLAMA = Shape(24, 2048, 5632)  # as in flash-linear-attention's 1.3B configs: 8/3 d_model, rounded up to 256
H2 = {
    "1.3b": Shape(18, 2304, 5760),  # H1's depth and width: nobody has published H2's
    "400m": Shape(24, 1024, 3136),
    "small": Shape(12, 384, 864),
    "tiny": Shape(6, 256, 376),
    "nano": Shape(6, 96, 88),
}
SHAPES: dict[str, dict[str, Shape]] = {
    "retnet": {
        "1.3b": Shape(24, 2048, 2944),
        "400m": Shape(24, 1024, 2240),
        "small": Shape(12, 384, 560),
        "tiny": Shape(5, 256, 344),
        "nano": Shape(5, 96, 72),
    },
    "hgrn2": {
        "1.3b": LLAMA,
        "400m": Shape(24, 1024, 3584),
        "small": Shape(12, 384, 1072),
        "tiny": Shape(6, 256, 512),
        "nano": Shape(6, 96, 144),
    },
    "mamba": {
        "1.3b": Shape(47, 2048, 0),  # 48 in its authors' 1.4b, whose vocabulary is larger
        "400m": Shape(55, 1024, 0),
        "small": Shape(23, 384, 0),
        "tiny": Shape(9, 256, 0),
        "nano": Shape(7, 96, 0),
    },
    "mamba2": {
        "1.3b": Shape(48, 2048, 0),  # its authors' 1.3b
        "400m": Shape(56, 1024, 0),
        "small": Shape(22, 384, 0),
        "tiny": Shape(9, 256, 0),
        "nano": Shape(7, 96, 0),
    },
    "deltanet": {
        "1.3b": LLAMA,
        "400m": Shape(24, 1024, 3584),
        "small": Shape(12, 384, 1056),
        "tiny": Shape(6, 256, 504),
        "nano": Shape(6, 96, 140),
    },
    "gdn": {
        "1.3b": Shape(16, 2400, 5888),  # official code
        "400m": Shape(24, 1024, 2944),
        "small": Shape(12, 384, 800),
        "tiny": Shape(6, 256, 336),
        "nano": Shape(6, 96, 76),
    },
    "transformer": {
        "1.3b": LLAMA,
        "400m": Shape(24, 1024, 3584),
        "small": Shape(12, 384, 1072),
        "tiny": Shape(6, 256, 512),
        "nano": Shape(6, 96, 144),
    },
    "samba": {
        "1.3b": Shape(18, 2304, 5952),  # its authors' depth and width
        "400m": Shape(24, 1024, 3200),
        "small": Shape(12, 384, 912),
        "tiny": Shape(6, 256, 400),
        "nano": Shape(6, 96, 92),
    },
    "gdn-h1": {
        "1.3b": Shape(18, 2304, 6144),  # official code
        "400m": Shape(24, 1024, 3264),
        "small": Shape(12, 384, 944),
        "tiny": Shape(6, 256, 424),
        "nano": Shape(6, 96, 112),
    },
    "gdn-h2": H2,
    "gdn-swa-mamba2": H2,
    "gdn-mamba2-swa": H2,
    "mamba2-swa-gdn": H2,
}
SHAPES["linear-attention"] = SHAPES["transformer"]  # four square matrices in either mixer
SHAPES["longhorn"] = SHAPES["gdn"]  # which has n_heads · d_model more, for α


def preset(architecture: str, size: str) -> ModelConfig:
    n_layers, d_model, d_ff = SHAPES[architecture][size]
    mixers = tuple(mixer(d_model, SIZES[size]) for mixer in MIXERS[architecture])
    return ModelConfig(d_model, n_layers, mixers, d_ff, SIZES[size].vocab_size)


OFFICIAL_GDN = GatedDeltaNet(n_heads=9, d_k=128, d_v=256)
OFFICIAL_SWA = Attention(n_heads=12, d_head=128, window=2048)

PRESETS = {f"{name}-{size}": preset(name, size) for size in SIZES for name in MIXERS} | {
    "gdn-official-0.4b": ModelConfig(1536, 11, (OFFICIAL_GDN,), 6144, 32000),  # official code: really 517 M
    "gdn-h1-official-0.4b": ModelConfig(1536, 12, (OFFICIAL_GDN, OFFICIAL_SWA), 6144, 32000),  # really 531 M
    "gdn-demo": ModelConfig(128, 4, (GatedDeltaNet(2, 48, 96),), 256, 2048),  # what learns most in minutes: docs/log.md
}


def get_preset(name: str) -> ModelConfig:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
