"""How long a token takes: each kind of work at the rate that this kind reaches.

On GPUs the rates come from Fig. 3, the paper's H100 at 1.3B. The Transformer's four lengths give products 51 % of the
peak (with norms, loss and optimiser in them) and attention 22 %, and meet every length within 1 %. What the pure
recurrent models need beyond their products gives the others; those are bound by memory, hence FLOPs per byte.
The hybrids, which were not fitted, come out within 17 % (tests/plan/test_fig3.py).
"""

from collections.abc import Mapping
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
from gated_deltanet.models import ModelConfig, count

from .gpus import GPU

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
# Share of torch.mm's rate that work reaches in a training step here, norms and the like among the products. From
# profiles of gdn-small, gdn-h2-small and mamba-small on a busy machine; those marked so are guessed from a relative.
CPU_PRODUCTS = 0.65
CPU_MIXERS: dict[type[Mixer], float] = {
    GatedDeltaNet: 0.5,
    DeltaNet: 0.5,  # guessed
    Longhorn: 0.5,  # guessed
    Mamba2: 0.4,
    RetNet: 0.4,  # guessed
    HGRN2: 0.15,  # guessed
    LinearAttention: 0.4,  # guessed
    Mamba: 0.05,
    Attention: 0.25,
}


class Rates(NamedTuple):
    """FLOP/s that are reached."""

    products: float
    mixers: Mapping[type[Mixer], float]


def gpu_rates(gpu: GPU) -> Rates:
    recurrent = {mixer: intensity * gpu.bandwidth for mixer, intensity in FLOPS_PER_BYTE.items()}
    return Rates(PRODUCTS * gpu.flops, {**recurrent, Attention: ATTENTION * gpu.flops})


def cpu_rates(measured: float) -> Rates:
    """measured: FLOP/s of torch.mm on this machine."""
    return Rates(CPU_PRODUCTS * measured, {mixer: share * measured for mixer, share in CPU_MIXERS.items()})


def train_flops(config: ModelConfig, length: int) -> float:
    """Useful FLOPs per token, forward and backward: 6 for each weight that multiplies, and 3 × the mixers' own."""
    return 3 * count.flops_per_token(config, length)


def mixer_flops(config: ModelConfig, length: int) -> dict[type[Mixer], float]:
    """Forward, per token, by kind."""
    found: dict[type[Mixer], float] = {}
    for mixer in map(config.mixer, range(config.n_layers)):
        found[type(mixer)] = found.get(type(mixer), 0) + mixer.flops(length)
    return found


def seconds_per_token(config: ModelConfig, length: int, rates: Rates, checkpointing: bool = False) -> float:
    """Forward and backward. With checkpointing all forward work but the head's is done twice."""
    mixers = mixer_flops(config, length)
    products = count.flops_per_token(config, length) - sum(mixers.values())
    passes, head = 4 if checkpointing else 3, 2 * config.vocab_size * config.d_model
    own = sum(passes * flops / rates.mixers[kind] for kind, flops in mixers.items())
    return (passes * products - (passes - 3) * head) / rates.products + own
