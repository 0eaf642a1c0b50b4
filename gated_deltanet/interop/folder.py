"""A model as a folder: config.json, model.safetensors, and its tokenizer if it has one. Nothing is unpickled.

The names are those a Hugging Face model has that holds a `CausalLM` as `self.model`, so both read the same folder;
transformers is not needed for it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from gated_deltanet import files
from gated_deltanet.data.tokenizer import beginning_documents, find_end_of_text
from gated_deltanet.data.tokenizer import load as read_tokenizer
from gated_deltanet.layers.decay import Decay
from gated_deltanet.models.config import ModelConfig, field_names
from gated_deltanet.models.model import CausalLM
from gated_deltanet.models.presets import PRESETS
from gated_deltanet.models.weights import check_format, fill, pack_weights, packed_format, stored

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX = "model.safetensors.index.json"  # in the place of WEIGHTS: which of several files holds a tensor
MODEL_TYPE, ARCHITECTURE, PREFIX = "gdn", "GdnForCausalLM", "model."
ROLES = ("bos_token", "eos_token", "pad_token")


def save(model: CausalLM, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Each file is written under another name first. The config comes last: a folder without it is unfinished."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {PREFIX + name: x for name, x in stored(model).items()}
    files.write(folder / WEIGHTS, lambda file: save_file(tensors, file, metadata={"format": "pt"}))
    if tokenizer is not None:
        files.write_text(folder / TOKENIZER, beginning_documents(tokenizer).to_str(pretty=True))
        for name, values in tokenizer_files(tokenizer).items():
            files.write_json(folder / name, values)
    packed = packed_format(model)
    files.write_json(folder / CONFIG, to_json(model.config) | ({"weights": packed} if packed else {}))


def load(folder: str | Path, weights: str | None = None) -> CausalLM:
    """The model in a folder, in the dtypes it was saved in (A_log and dt_bias in float32 at least).

    weights: pack them in one of "float32", "bfloat16", "int8" and "int4" (`pack_weights`), for inference. A folder of
    packed weights is read as it was packed.
    """
    folder = Path(folder)
    if weights is not None:
        check_format(weights)
    config, tensors, packed = load_config(folder), read_tensors(folder), stored_format(folder)
    if packed and weights not in (None, packed):
        raise ValueError(f"the weights in {folder} are {packed}, expected floating-point ones to make {weights} of")
    model = without_weights(config, len(tensors), folder / CONFIG)
    if packed:
        if foreign := sorted(name for name in tensors if not name.startswith(PREFIX)):
            raise ValueError(f"{folder / WEIGHTS} holds {some(foreign)}, expected only tensors {CONFIG} describes")
        unpacked = {name.removeprefix(PREFIX): x for name, x in tensors.items()}
        fill(model, unpacked, packed, folder / WEIGHTS)
        tensors = {PREFIX + name: x for name, x in unpacked.items()}
    expected = {name: x for name, x in model.state_dict().items() if not name.endswith(".packed")}
    check_tensors(tensors, expected, folder / WEIGHTS)
    model.load_state_dict({name.removeprefix(PREFIX): x for name, x in tensors.items()}, strict=False, assign=True)
    if weights and not packed:
        return pack_weights(model, weights)
    for module in model.modules():
        if isinstance(module, Decay) and module.A_log.dtype != torch.float64:
            module.float()
    return model


def quantise(folder: str | Path, out: str | Path, weights: str) -> None:
    """Write a saved model again, with its tokenizer, its weights packed in this format."""
    if Path(out).exists() and any(Path(out).iterdir()):
        raise ValueError(f"{out} holds something already, expected a folder that is new or empty")
    model = load(folder, weights)
    save(model, out, read_tokenizer(folder) if (Path(folder) / TOKENIZER).exists() else None)


def stored_format(folder: str | Path) -> str | None:
    """In which the weights of a saved model are packed, as its config says; None: they are not."""
    file = Path(folder) / CONFIG
    weights = files.read_json(file).get("weights")
    if weights is not None:
        with files.naming(file):
            check_format(weights)
    return weights


def load_weights(model: CausalLM, folder: str | Path) -> None:
    """The weights of a saved model into another one of the same shape; those that do not fit it are named."""
    tensors = {name.removeprefix(PREFIX): x for name, x in read_tensors(Path(folder)).items()}
    expected = model.state_dict()
    shapes = ((name, list(x.shape), list(expected[name].shape)) for name, x in tensors.items() if name in expected)
    wrong = [f"{name} is {found}, expected {shape}" for name, found, shape in shapes if found != shape]
    wrong += [f"{name} is missing" for name in expected if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in expected]
    if wrong:
        raise ValueError(f"the weights in {folder} are not of this model: {some(wrong)}")
    model.load_state_dict(tensors)


def without_weights(config: ModelConfig, n_tensors: int, file: Path) -> CausalLM:
    """The model that config.json describes. n_tensors: of its weights, at least one a layer."""
    if config.n_layers > n_tensors:
        raise ValueError(
            f"{file}: n_layers is {config.n_layers}, expected at most {n_tensors}, the tensors in {WEIGHTS}"
        )
    try:
        with torch.device("meta"):
            return CausalLM(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch raises any of them
        raise ValueError(
            f"{file} describes no model that torch can hold: {str(error).partition(chr(10))[0]}"
        ) from error


def load_config(folder: str | Path) -> ModelConfig:
    """Of a model's folder. Fields that are not ours are Hugging Face's, and are passed over."""
    file = Path(folder) / CONFIG
    if not file.exists():
        raise not_saved(folder)
    return from_json(files.read_json(file), file)


def read_config(file: Path) -> ModelConfig:
    """Of a file of one's own, the fields of `ModelConfig` in TOML or JSON, or of the config.json of a saved model."""
    if file.suffix not in (".toml", ".json"):
        raise ValueError(f"{file} is no description of a model, expected a TOML file or a config.json")
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}, expected the description of a model in TOML or JSON")
    values = files.read_toml(file) if file.suffix == ".toml" else files.read_json(file)
    if "model_type" in values:
        return from_json(values, file)
    with files.naming(file):
        return ModelConfig.from_dict({"vocab_size": 257, **values})  # it becomes the tokenizer's


def from_json(values: Mapping[str, Any], file: Path) -> ModelConfig:
    """What `to_json` makes of a config."""
    if values.get("model_type") != MODEL_TYPE:
        raise ValueError(f"{file}: model_type is {values.get('model_type')!r}, expected {MODEL_TYPE!r}")
    ours, _ = field_names(ModelConfig)
    if missing := [name for name in ours if name not in values]:
        raise ValueError(f"{file}: {', '.join(missing)} is missing, expected all of {', '.join(ours)}")
    with files.naming(file):
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


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """From one file, or from the shards of one."""
    index = folder / INDEX
    if index.exists() and not (folder / WEIGHTS).exists():
        with files.naming(index):
            where = files.shaped(files.read_json(index, strict=False).get("weight_map"), dict[str, str], "weight_map")
        shards = [folder / Path(name).name for name in sorted({*where.values()})]
    else:
        shards = [folder / WEIGHTS]
    if missing := [file.name for file in shards if not file.exists()]:
        raise FileNotFoundError(f"no {missing[0]} in {folder}, expected the folder of a saved model")
    return {name: x for file in shards for name, x in files.read_tensors(file)[1].items()}


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> None:
    """found: by their names in the file. expected: of the model the config describes."""
    names = {PREFIX + name: list(x.shape) for name, x in expected.items()}
    if missing := sorted(names.keys() - found.keys()):
        raise ValueError(f"{file}: {some(missing)} is missing, expected all tensors {CONFIG} describes")
    if others := sorted(found.keys() - names.keys()):
        raise ValueError(f"{file} holds {some(others)}, expected only tensors {CONFIG} describes")
    for name, shape in names.items():
        if not found[name].is_floating_point():
            raise ValueError(f"{file}: {name} is {found[name].dtype}, expected a floating-point type")
        if list(found[name].shape) != shape:
            raise ValueError(f"{file}: {name} is {list(found[name].shape)}, expected {shape}, as {CONFIG} says")


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Of Hugging Face's PreTrainedTokenizerFast."""
    settings = {"padding_side": "left", "clean_up_tokenization_spaces": False}
    settings["split_special_tokens"] = True  # written out in a text they are text
    end = find_end_of_text(tokenizer)
    return settings if end is None else settings | dict.fromkeys(ROLES, tokenizer.id_to_token(end))


def generation_settings(tokenizer: Tokenizer) -> dict[str, int]:
    """Of Hugging Face's GenerationConfig; none without an end of text."""
    end = find_end_of_text(tokenizer)
    return {} if end is None else {f"{role}_id": end for role in ROLES}


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """What Hugging Face's AutoTokenizer and generate() read beside our files: where a text ends, the side to pad on."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer_settings(tokenizer)}
    generation = generation_settings(tokenizer)
    return {"tokenizer_config.json": settings} | ({"generation_config.json": generation} if generation else {})
