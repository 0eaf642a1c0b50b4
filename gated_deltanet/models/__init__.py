"""Language models of the mixers in `layers`: configs and presets, the causal model, its state and its files."""

from .checkpoint import load, save
from .config import ModelConfig
from .model import CausalLM, State
from .presets import PRESETS, get_preset

__all__ = ["PRESETS", "CausalLM", "ModelConfig", "State", "get_preset", "load", "save"]
