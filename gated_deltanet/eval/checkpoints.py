"""Which checkpoint is evaluated, and whether it is still the same."""

import json
from hashlib import sha256
from pathlib import Path

from gated_deltanet.models.checkpoint import CONFIG, MODEL_TYPE


def is_ours(checkpoint: str) -> bool:
    file = Path(checkpoint) / CONFIG
    return file.exists() and json.loads(file.read_text()).get("model_type") == MODEL_TYPE


def fingerprint(checkpoint: str, *settings: object) -> str:
    """Of a model that answers alike: the files of its folder, as they are now, or its name, and the settings."""
    files = sorted(Path(checkpoint).glob("*")) if Path(checkpoint).is_dir() else []
    found = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return sha256(repr((checkpoint, found, settings)).encode()).hexdigest()[:16]
