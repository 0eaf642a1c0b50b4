"""What is trained: two small layers of any architecture, or one of Gated DeltaNet for state tracking."""

from typing import NamedTuple

from gated_deltanet.layers import GatedDeltaNet
from gated_deltanet.models.config import ModelConfig
from gated_deltanet.models.presets import MIXERS, Size
from gated_deltanet.naming import unknown

D_MODEL, D_FF = 64, 128

STATES = {  # by the numbers of state a layer; Gated DeltaNet and Longhorn have ⅛ more: their keys are ¾ d_model
    1024: Size(0, window=32, d_head=16, d_retnet=8, gdn_heads=4, d_state=8, d_mamba2=32),
    2048: Size(0, window=32, d_head=32, d_retnet=16, gdn_heads=2, d_state=16, d_mamba2=32),
    4096: Size(0, window=32, d_head=64, d_retnet=32, gdn_heads=1, d_state=32, d_mamba2=32),
}


def architecture(name: str, vocab_size: int, state: int = 2048) -> ModelConfig:
    """Two layers, three of what has three mixers, an MLP behind each, also where its authors have none."""
    if name not in MIXERS:
        raise unknown("architecture", name, MIXERS)
    mixers = tuple(mixer(D_MODEL, STATES[state]) for mixer in MIXERS[name])
    return ModelConfig(D_MODEL, max(2, len(mixers)), mixers, D_FF, vocab_size)


class Transition(NamedTuple):
    """What a token may do to the state: n_h Householder steps with β up to beta_max."""

    n_h: int
    beta_max: int

    def __str__(self) -> str:
        return f"n_h = {self.n_h}, β ≤ {self.beta_max}"


def tracker(transition: Transition, vocab_size: int) -> ModelConfig:
    """One layer, so that the state must do it, which nothing but the transition moves: no decay, no convolution."""
    n_h, beta_max = transition
    mixer = GatedDeltaNet(4, 16, 16, conv_size=None, decay=False, beta_max=beta_max, n_h=n_h)
    return ModelConfig(D_MODEL, 1, (mixer,), D_FF, vocab_size, tied=False)
