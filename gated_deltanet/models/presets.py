"""Named models: every architecture of the paper at five sizes, counted alike, so that comparisons are fair.

Of one size all architectures have the same number of parameters within 3 %, embeddings (tied) included: 1.3 B, 400 M,
25 M, 4 M and 0.5 M. Head sizes follow the authors of each mixer; they, and depth, width and d_ff of models of
one mixer only, stand with the mixer (`gated_deltanet.layers`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from gated_deltanet import layers
from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba, Mamba2, Mixer
from gated_deltanet.layers.mixer import Shape, Size
from gated_deltanet.naming import unknown

from .config import ModelConfig

Sized: TypeAlias = Callable[[int, Size], Mixer]  # of d_model and the size

SIZES = {
    "1.3b": Size(32000, 2048, 128, 256, gdn_heads=9, d_state=128, d_mamba2=64),
    "400m": Size(32000, 2048, 128, 256, gdn_heads=6, d_state=128, d_mamba2=64),
    "small": Size(8192, 512, 64, 96, gdn_heads=3, d_state=128, d_mamba2=64),
    "tiny": Size(257, 256, 64, 64, gdn_heads=3, d_state=64, d_mamba2=64),
    "nano": Size(257, 128, 32, 24, gdn_heads=3, d_state=48, d_mamba2=32),
}


def swa(d_model: int, size: Size) -> Attention:
    return replace(Attention.sized(d_model, size), window=size.window)


def qwen_gdn(d_model: int, size: Size) -> GatedDeltaNet:
    """Keys and values of 2 d_model in all."""
    return GatedDeltaNet(2 * d_model // size.d_head, size.d_head, size.d_head)


def qwen_attention(d_model: int, size: Size) -> Attention:
    """Heads of twice the size, a quarter of each turned to its position."""
    n_heads, d_head = d_model // size.d_head, 2 * size.d_head
    options = {"rope_theta": 1e7, "rope_dims": d_head // 4, "qk_norm": "head", "gate": True}
    return Attention(n_heads, d_head, max(1, n_heads // 4), **options)


class Architecture(NamedTuple):
    mixers: tuple[Sized, ...]  # tiled over the layers
    shapes: Mapping[str, Shape]  # by size
    norm_eps: float = 1e-5


def pure(mixer: type[Mixer]) -> Architecture:
    """Of one mixer only."""
    return Architecture((mixer.sized,), mixer.about.shapes)


H2_SHAPES = {
    "1.3b": Shape(18, 2304, 5760),  # H1's depth and width: nobody has published H2's
    "400m": Shape(27, 1024, 2560),
    "small": Shape(12, 384, 864),
    "tiny": Shape(3, 320, 768),
    "nano": Shape(3, 112, 252),
}
HYBRIDS = {
    "samba": Architecture(
        (Mamba.sized, swa),
        {
            "1.3b": Shape(18, 2304, 6144),  # its authors'
            "400m": Shape(26, 1024, 2816),
            "small": Shape(12, 384, 912),
            "tiny": Shape(4, 256, 824),
            "nano": Shape(4, 96, 228),
        },
    ),
    "gdn-h1": Architecture(  # section 3.4
        (GatedDeltaNet.sized, swa),
        {
            "1.3b": Shape(18, 2304, 6144),  # official code
            "400m": Shape(26, 1024, 2880),
            "small": Shape(12, 384, 944),
            "tiny": Shape(4, 256, 848),
            "nano": Shape(4, 96, 248),
        },
    ),
    "gdn-h2": Architecture((Mamba2.sized, GatedDeltaNet.sized, swa), H2_SHAPES),  # section 3.4
    "gdn-qwen35": Architecture(  # the dense text layers of Qwen3.5, with the heads of its 0.8B
        (qwen_gdn, qwen_gdn, qwen_gdn, qwen_attention),
        {
            "1.3b": Shape(16, 2048, 6368),
            "400m": Shape(20, 1024, 2816),
            "small": Shape(8, 384, 1184),
            "tiny": Shape(6, 192, 512),
            "nano": Shape(6, 64, 200),
        },
        norm_eps=1e-6,
    ),
    "gdn-swa-mamba2": Architecture((GatedDeltaNet.sized, swa, Mamba2.sized), H2_SHAPES),  # table S.2, as the next two
    "gdn-mamba2-swa": Architecture((GatedDeltaNet.sized, Mamba2.sized, swa), H2_SHAPES),
    "mamba2-swa-gdn": Architecture((Mamba2.sized, swa, GatedDeltaNet.sized), H2_SHAPES),
}
PAPER = ("retnet", "hgrn2", "mamba", "mamba2", "deltanet", "gdn", "transformer", "samba", "gdn-h1", "gdn-h2")


ALL = {mixer.about.name: pure(mixer) for mixer in layers.MIXERS.values()} | HYBRIDS
ARCHITECTURES = {name: ALL[name] for name in (*PAPER, *ALL)}  # the paper's first
MIXERS = {name: architecture.mixers for name, architecture in ARCHITECTURES.items()}


def preset(architecture: Architecture, size: str) -> ModelConfig:
    n_layers, d_model, d_ff = architecture.shapes[size]
    mixers = tuple(mixer(d_model, SIZES[size]) for mixer in architecture.mixers)
    return ModelConfig(d_model, n_layers, mixers, d_ff, SIZES[size].vocab_size, norm_eps=architecture.norm_eps)


MATCHED = {  # layers, d_model, d_state of Mamba2 with a state of Gated DeltaNet's bytes: its own has 2 to 4 times those
    "1.3b": (48, 2048, 58),
    "400m": (57, 1024, 44),
    "small": (24, 384, 32),
    "tiny": (5, 352, 28),
    "nano": (8, 96, 8),
}


def matched_mamba2(size: str) -> ModelConfig:
    n_layers, d_model, d_state = MATCHED[size]
    mixer = replace(Mamba2.sized(d_model, SIZES[size]), d_k=d_state)
    return ModelConfig(d_model, n_layers, (mixer,), 0, SIZES[size].vocab_size)


OFFICIAL_GDN = GatedDeltaNet(n_heads=9, d_k=128, d_v=256, beta_bias=True)
OFFICIAL_SWA = Attention(n_heads=12, d_head=128, window=2048)
MAMBA2 = Mamba2(n_heads=48, d_k=128, d_v=64)
ORDERS = {  # table S.2
    "gdn-swa-mamba2": (OFFICIAL_GDN, OFFICIAL_SWA, MAMBA2),
    "gdn-mamba2-swa": (OFFICIAL_GDN, MAMBA2, OFFICIAL_SWA),
    "mamba2-swa-gdn": (MAMBA2, OFFICIAL_SWA, OFFICIAL_GDN),
    "gdn-h2": (MAMBA2, OFFICIAL_GDN, OFFICIAL_SWA),
}

PRESETS = {
    f"{name}-{size}": preset(each, size)
    for size in SIZES
    for name, each in ARCHITECTURES.items()
    if size in each.shapes
}
PRESETS |= {f"mamba2-matched-{size}": matched_mamba2(size) for size in SIZES}
PRESETS |= {f"{name}-500m": ModelConfig(1536, 12, mixers, 6144, 32000) for name, mixers in ORDERS.items()}  # H1's shape
PRESETS |= {
    "gdn-official-0.4b": ModelConfig(1536, 11, (OFFICIAL_GDN,), 6144, 32000),  # official code: really 517 M
    "gdn-h1-official-0.4b": ModelConfig(1536, 12, (OFFICIAL_GDN, OFFICIAL_SWA), 6144, 32000),  # really 531 M
    "gdn-demo": ModelConfig(128, 4, (GatedDeltaNet(2, 48, 96),), 256, 2048),  # what learns most in minutes: docs/log.md
}


def get_preset(name: str) -> ModelConfig:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def choose(names: Sequence[str], size: str) -> list[str]:
    """Names of presets: of those given, which may be architectures of this size; without any the paper's ten."""
    if size not in SIZES:
        raise unknown("--size", size, SIZES)
    for name in names:
        if name not in PRESETS and name not in ARCHITECTURES:
            raise unknown("preset", name, [*ARCHITECTURES, *PRESETS])
    return [name if name in PRESETS else f"{name}-{size}" for name in names or PAPER]
