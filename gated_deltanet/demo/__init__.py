"""The main job, in minutes on two cores: train a small model on the standard library and show what it learned."""

from pathlib import Path

MODEL = Path(__file__).with_name("model")
"""The folder of such a model that learnt for longer, in 8 bits: what `gdn generate` runs unless it is given another."""
