"""Token mixers. Each is a frozen config, named in `ModelConfig.mixers`, whose `build` makes the module.

Every module is `forward(x, state=None, *, cu_seqlens=None, keep_state=True) -> (y, state)`, one path for training,
prefill and decoding. x, y: [B, L, d_model]. cu_seqlens: [N + 1], packs N sequences in one row (B = 1); without it
N = B. The state is a NamedTuple of tensors whose first axis is N; None before the first token. It is never changed in
place, so keeping a reference is keeping the state. With keep_state=False, as in training, the state returned is None.

MIXERS is the one list of them, by the names in files. What else a config tells of its mixer is `mixer.Mixer`.
"""

from .attention import Attention as Attention
from .deltanet import DeltaNet as DeltaNet
from .gated_deltanet import GatedDeltaNet as GatedDeltaNet
from .hgrn2 import HGRN2 as HGRN2
from .linear_attention import LinearAttention as LinearAttention
from .longhorn import Longhorn as Longhorn
from .mamba import Mamba as Mamba
from .mamba2 import Mamba2 as Mamba2
from .mixer import Mixer as Mixer
from .retnet import RetNet as RetNet

MIXERS: dict[str, type[Mixer]] = {
    mixer.__name__: mixer
    for mixer in (GatedDeltaNet, DeltaNet, Mamba2, Mamba, RetNet, HGRN2, LinearAttention, Longhorn, Attention)
}
