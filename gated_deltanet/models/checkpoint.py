"""A model as a folder: config.json, model.safetensors, and its tokenizer if it has one. Nothing is unpickled.

The names are those a Hugging Face model has that holds a `CausalLM` as `self.model`, so both read the same folder.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from gated_deltanet.data.tokenizer import beginning_documents
from gated_deltanet.layers.decay import Decay

from . import hugging_face
from .config import ModelConfig, field_names
from .model import CausalLM
from .presets import PRESETS

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL_TYPE, ARCHITECTURE, PREFIX = "gdn", "GdnForCausalLM", "model."


def save(model: CausalLM, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Each file is written under another name first. The config comes last: a folder without it is unfinished."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {PREFIX + name: x.detach().contiguous() for name, x in model.state_dict().items()}
    write(folder / WEIGHTS, lambda file: save_file(tensors, file, metadata={"format": "pt"}))
    if tokenizer is not None:
        write(folder / TOKENIZER, lambda file: beginning_documents(tokenizer).save(str(file)))
        for name, values in hugging_face.files(tokenizer).items():
            write_json(folder / name, values)
    write_json(folder / CONFIG, to_json(model.config))


def load(folder: str | Path) -> CausalLM:
    """The model in a folder, in the dtypes it was saved in (A_log and dt_bias in float32 at least)."""
    folder = Path(folder)
    with torch.device("meta"):
        model = CausalLM(load_config(folder))
    tensors = read_tensors(folder / WEIGHTS)
    check_tensors(tensors, model.state_dict(), folder / WEIGHTS)
    model.load_state_dict({name.removeprefix(PREFIX): x for name, x in tensors.items()}, assign=True)
    for module in model.modules():
        if isinstance(module, Decay) and module.A_log.dtype != torch.float64:
            module.float()
    return model


def load_config(folder: str | Path) -> ModelConfig:
    """Of a model's folder. Fields that are not ours are Hugging Face's, and are passed over."""
    file = Path(folder) / CONFIG
    if not file.exists():
        raise not_saved(folder)
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict) or values.get("model_type") != MODEL_TYPE:
        found = values.get("model_type") if isinstance(values, dict) else values
        raise ValueError(f"{file}: model_type is {found!r}, expected {MODEL_TYPE!r}")
    ours, _ = field_names(ModelConfig)
    if missing := [name for name in ours if name not in values]:
        raise ValueError(f"{file}: {', '.join(missing)} is missing, expected all of {', '.join(ours)}")
    return ModelConfig.from_dict({name: values[name] for name in ours})


def not_saved(folder: str | Path) -> FileNotFoundError:
    """What is wrong with a folder that holds no config."""
    if Path(folder).is_dir():
        return FileNotFoundError(f"no {CONFIG} in {folder}, expected the folder of a saved model")
    if str(folder) in PRESETS:
        how = f"expected the folder of a saved model, as `gdn train {folder}` makes one"
        return FileNotFoundError(f"{folder} is a preset, and there is no folder of this name: {how}")
    return FileNotFoundError(f"there is no folder {folder}, expected that of a saved model")


def to_json(config: ModelConfig) -> dict[str, Any]:
    return {"model_type": MODEL_TYPE, "architectures": [ARCHITECTURE], **config.to_dict()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    if not file.exists():
        raise FileNotFoundError(f"no {file.name} in {file.parent}, expected the folder of a saved model")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> None:
    """found: by their names in the file. expected: of the model the config describes."""
    names = {PREFIX + name: list(x.shape) for name, x in expected.items()}
    if missing := sorted(names.keys() - found.keys()):
        raise ValueError(f"{file}: {some(missing)} is missing, expected all tensors {CONFIG} describes")
    if others := sorted(found.keys() - names.keys()):
        raise ValueError(f"{file} holds {some(others)}, expected only tensors {CONFIG} describes")
    for name, shape in names.items():
        if list(found[name].shape) != shape:
            raise ValueError(f"{file}: {name} is {list(found[name].shape)}, expected {shape}, as {CONFIG} says")


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def write(file: Path, to: Callable[[Path], object]) -> None:
    """Whole or not at all: under another name first."""
    unfinished = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        to(unfinished)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    write(file, lambda unfinished: unfinished.write_text(text))
