"""Language models of the mixers in `layers`: configs and presets, the causal model, its state and its files."""

from .checkpoint import load, save
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
    "load",
    "save",
    "stream",
]
