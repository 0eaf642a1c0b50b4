"""Token mixers. Each is a frozen config, named in `ModelConfig.mixers`, whose `build` makes the module.

Every module is `forward(x, state=None, *, cu_seqlens=None, keep_state=True) -> (y, state)`, one path for training,
prefill and decoding. x, y: [B, L, d_model]. cu_seqlens: [N + 1], packs N sequences in one row (B = 1); without it
N = B. The state is a NamedTuple of tensors whose first axis is N; None before the first token. It is never changed in
place, so keeping a reference is keeping the state. With keep_state=False, as in training, the state returned is None.
"""

from typing import TypeAlias

from .attention import Attention
from .deltanet import DeltaNet
from .gated_deltanet import GatedDeltaNet
from .hgrn2 import HGRN2
from .linear_attention import LinearAttention
from .longhorn import Longhorn
from .mamba import Mamba
from .mamba2 import Mamba2
from .retnet import RetNet

Mixer: TypeAlias = GatedDeltaNet | DeltaNet | Mamba2 | Mamba | RetNet | HGRN2 | LinearAttention | Longhorn | Attention

MIXERS: dict[str, type[Mixer]] = {
    cls.__name__: cls
    for cls in (GatedDeltaNet, DeltaNet, Mamba2, Mamba, RetNet, HGRN2, LinearAttention, Longhorn, Attention)
}

__all__ = [
    "HGRN2",
    "MIXERS",
    "Attention",
    "DeltaNet",
    "GatedDeltaNet",
    "LinearAttention",
    "Longhorn",
    "Mamba",
    "Mamba2",
    "Mixer",
    "RetNet",
]
