"""Which checkpoint is evaluated, and whether it is still the same."""

import json
import re
from hashlib import sha256
from pathlib import Path

from gated_deltanet.models.checkpoint import CONFIG, MODEL_TYPE, not_saved
from gated_deltanet.models.presets import PRESETS

NAME = r"(\w[\w.-]*/)?\w[\w.-]*"  # of a model on the hub
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def is_ours(checkpoint: str) -> bool:
    """Or another's, by its folder or its name on the Hugging Face hub."""
    file = Path(checkpoint) / CONFIG
    if not file.exists():
        if Path(checkpoint).is_dir() or checkpoint in PRESETS or not is_name(checkpoint):
            raise not_saved(checkpoint)
        return False
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    return isinstance(values, dict) and values.get("model_type") == MODEL_TYPE


def is_name(checkpoint: str) -> bool:
    """Whether it may be on the hub: runs/tiny is meant to be a folder where there is one named runs."""
    owner, slash, _ = checkpoint.rpartition("/")
    return re.fullmatch(NAME, checkpoint) is not None and not (slash and Path(owner).is_dir())


def check_tokenizer(checkpoint: str) -> None:
    """Of another's folder: transformers' own message names everything but the files that are missing."""
    folder = Path(checkpoint)
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZERS):
        raise FileNotFoundError(f"no tokenizer in {folder}, expected its files beside the model's: tokenizer.json, …")


def fingerprint(checkpoint: str, *settings: object) -> str:
    """Of a model that answers alike: the files of its folder, as they are now, or its name, and the settings."""
    files = sorted(Path(checkpoint).glob("*")) if Path(checkpoint).is_dir() else []
    found = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return sha256(repr((checkpoint, found, settings)).encode()).hexdigest()[:16]
