"""How long a token takes: each kind of work at the rate that this kind reaches.

On GPUs the rates come from Fig. 3, the paper's H100 at 1.3B. The Transformer's four lengths give products 51 % of the
peak (with norms, loss and optimiser in them) and attention 22 %, and meet every length within 1 %. What the pure
recurrent models need beyond their products gives the others; those are bound by memory, hence FLOPs per byte.
The hybrids, which were not fitted, come out within 17 % (tests/plan/test_fig3.py).

On a CPU rates are shares of torch.mm's, fitted to a measured Fig. 3 of this kind (results/bench/train), which they
meet within a quarter (tests/plan/test_here.py). The mixers' rates stand with them: `speed` of their configs.
"""

from collections.abc import Callable
from typing import NamedTuple

from gated_deltanet.layers import Mixer
from gated_deltanet.models import ModelConfig, count

from .devices import GPU

GPU_PRODUCTS = 0.51  # share of the peak that products reach
CPU_PRODUCTS = 0.66  # share of torch.mm's rate that products reach in a training step


class Rates(NamedTuple):
    """FLOP/s that are reached."""

    products: float
    own: Callable[[Mixer], float]  # by a mixer, besides its products


def gpu_rates(gpu: GPU) -> Rates:
    def own(mixer: Mixer) -> float:
        return mixer.speed.gpu * gpu.flops + mixer.speed.gpu_per_byte * gpu.bandwidth

    return Rates(GPU_PRODUCTS * gpu.flops, own)


def cpu_rates(measured: float) -> Rates:
    """measured: FLOP/s of torch.mm on this machine."""
    return Rates(CPU_PRODUCTS * measured, lambda mixer: mixer.speed.cpu * measured)


def train_flops(config: ModelConfig, length: int) -> float:
    """Useful FLOPs per token, forward and backward: 6 for each weight that multiplies, and 3 × the mixers' own."""
    return 3 * count.flops_per_token(config, length)


def seconds_per_token(config: ModelConfig, length: int, rates: Rates, checkpointing: bool = False) -> float:
    """Forward and backward. With checkpointing all forward work but the head's is done twice."""
    mixers = [config.mixer(layer) for layer in range(config.n_layers)]
    products = count.flops_per_token(config, length) - sum(mixer.flops(length) for mixer in mixers)
    passes, head = 4 if checkpointing else 3, 2 * config.vocab_size * config.d_model
    own = sum(passes * mixer.flops(length) / rates.own(mixer) for mixer in mixers)
    return (passes * products - (passes - 3) * head) / rates.products + own
