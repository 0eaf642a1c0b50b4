"""Checkpoints of other projects as ours, and ours as theirs.

`checkpoint` reads and writes folders of safetensors one tensor at a time; `fla_config` and `fla_names` say what a model
of flash-linear-attention is called here; `fla` converts it.
"""

from .fla import LAYOUTS, from_fla, to_fla

__all__ = ["LAYOUTS", "from_fla", "to_fla"]
