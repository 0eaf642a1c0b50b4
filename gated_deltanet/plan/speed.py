"""How long a token takes: each kind of work at the rate that this kind reaches.

On GPUs the rates come from Fig. 3, the paper's H100 at 1.3B. The Transformer's four lengths give products 51 % of the
peak (with norms, loss and optimiser in them) and attention 22 %, and meet every length within 1 %. What the pure
recurrent models need beyond their products gives the others; those are bound by memory, hence FLOPs per byte.
The hybrids, which were not fitted, come out within 17 % (tests/plan/test_fig3.py).
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

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
from gated_deltanet.models import ModelConfig, count

from .gpus import GPU

WINDOW = "sliding window"
Kind: TypeAlias = type[Mixer] | str  # of work: a kind of mixer, but attention with and without a window apart

PRODUCTS, ATTENTION = 0.51, 0.22  # share of the peak
FLOPS_PER_BYTE: dict[type[Mixer], float] = {
    GatedDeltaNet: 10.0,
    DeltaNet: 5.2,
    Mamba: 1.8,
    Mamba2: 17.2,
    # Not in Fig. 3: as the nearest relative.
    Longhorn: 10.0,
    RetNet: 17.2,
    HGRN2: 17.2,
    LinearAttention: 17.2,
}
# Share of torch.mm's rate that work reaches in a training step on a CPU: the products, and with norms, convolutions and
# gates in them the mixers. Fitted to a measured Fig. 3 of this kind (results/bench/train), which they meet within a
# quarter (tests/plan/test_here.py).
CPU_PRODUCTS = 0.62
CPU_MIXERS: dict[Kind, float] = {
    GatedDeltaNet: 0.3,
    DeltaNet: 0.14,
    Mamba2: 0.15,
    RetNet: 0.27,
    HGRN2: 0.12,
    Mamba: 0.029,
    Attention: 0.5,
    WINDOW: 0.125,
    # Not in Fig. 3: as the nearest relative.
    Longhorn: 0.3,
    LinearAttention: 0.27,
}


class Rates(NamedTuple):
    """FLOP/s that are reached."""

    products: float
    mixers: Mapping[Kind, float]


def gpu_rates(gpu: GPU) -> Rates:
    recurrent = {mixer: intensity * gpu.bandwidth for mixer, intensity in FLOPS_PER_BYTE.items()}
    attention = dict.fromkeys((Attention, WINDOW), ATTENTION * gpu.flops)
    return Rates(PRODUCTS * gpu.flops, {**recurrent, **attention})


def cpu_rates(measured: float) -> Rates:
    """measured: FLOP/s of torch.mm on this machine."""
    return Rates(CPU_PRODUCTS * measured, {mixer: share * measured for mixer, share in CPU_MIXERS.items()})


def train_flops(config: ModelConfig, length: int) -> float:
    """Useful FLOPs per token, forward and backward: 6 for each weight that multiplies, and 3 × the mixers' own."""
    return 3 * count.flops_per_token(config, length)


def mixer_flops(config: ModelConfig, length: int) -> dict[Kind, float]:
    """Forward, per token, by kind."""
    found: dict[Kind, float] = {}
    for mixer in map(config.mixer, range(config.n_layers)):
        kind = kind_of(mixer)
        found[kind] = found.get(kind, 0) + mixer.flops(length)
    return found


def kind_of(mixer: Mixer) -> Kind:
    return WINDOW if isinstance(mixer, Attention) and mixer.window else type(mixer)


def seconds_per_token(config: ModelConfig, length: int, rates: Rates, checkpointing: bool = False) -> float:
    """Forward and backward. With checkpointing all forward work but the head's is done twice."""
    mixers = mixer_flops(config, length)
    products = count.flops_per_token(config, length) - sum(mixers.values())
    passes, head = 4 if checkpointing else 3, 2 * config.vocab_size * config.d_model
    own = sum(passes * flops / rates.mixers[kind] for kind, flops in mixers.items())
    return (passes * products - (passes - 3) * head) / rates.products + own
