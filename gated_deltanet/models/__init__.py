"""Language models of the mixers in `layers`: configs and presets, the causal model, a session with it, generation."""

from .config import ModelConfig
from .generate import generate, stream
from .model import CausalLM, State
from .presets import PRESETS, get_preset
from .sampling import Sampling
from .session import Session

__all__ = [
    "PRESETS",
    "CausalLM",
    "ModelConfig",
    "Sampling",
    "Session",
    "State",
    "generate",
    "get_preset",
    "stream",
]
