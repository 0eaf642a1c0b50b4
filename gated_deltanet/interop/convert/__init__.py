"""Checkpoints of other projects as ours, and ours as theirs.

`checkpoint` reads and writes folders of safetensors one tensor at a time, `accounting` checks that every tensor has a
place. `transformers` converts models of transformers, whose names and configs stand in `llama`, `mamba`, `olmo` and
`qwen` as `joints`; `fla` those of flash-linear-attention, with `fla_config`, `fla_names` and `fla_values`;
`nvlabs` those of the paper's official code; `gguf` writes files for llama.cpp.
"""

from pathlib import Path

from gated_deltanet.models.config import ModelConfig

from .accounting import read_values
from .fla import LAYOUTS, from_fla, to_fla
from .fla_config import TYPES
from .nvlabs import from_nvlabs, to_nvlabs
from .transformers import ARCHITECTURES, from_transformers, to_transformers

__all__ = [
    "LAYOUTS",
    "from_any",
    "from_fla",
    "from_nvlabs",
    "from_transformers",
    "to_fla",
    "to_nvlabs",
    "to_transformers",
]


def from_any(source: str | Path, folder: str | Path) -> ModelConfig:
    """Write another project's checkpoint as a folder of ours. Its config.json says whose it is; a .pth is NVlabs's."""
    if Path(source).suffix == ".pth":
        return from_nvlabs(source, folder)
    values = read_values(Path(source), "FLA or transformers")
    model_type = values.get("model_type")
    if model_type == "gdn":
        raise ValueError(f"{source} is a model of ours already, expected another project's")
    if model_type in ARCHITECTURES and (model_type not in TYPES or "norm_eps" not in values):  # both have a mamba2
        return from_transformers(source, folder)
    if model_type in TYPES:
        return from_fla(source, folder)
    known = ", ".join(dict.fromkeys([*TYPES, *ARCHITECTURES]))
    raise ValueError(f"{source}: model_type is {model_type!r}, expected one of {known}")
