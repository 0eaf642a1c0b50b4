"""What is evaluated: a model in memory, a folder of ours or of Hugging Face's, or a name on the hub."""

from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gated_deltanet.data import reach
from gated_deltanet.data import tokenizer as tokenizers
from gated_deltanet.files import read_json
from gated_deltanet.interop.folder import CONFIG, MODEL_TYPE, load, not_saved
from gated_deltanet.models.model import CausalLM
from gated_deltanet.models.presets import PRESETS

from .model import Model, OurModel

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def as_model(model: Any, tokenizer: Any = None) -> Model:
    """What the suites take: a `CausalLM` or a causal language model of transformers, each with its tokenizer; a
    checkpoint, which is opened; or a `Model`, which is returned as it is."""
    if isinstance(model, str | Path):
        return open_model(model)
    if isinstance(model, CausalLM):
        if tokenizer is None:
            raise ValueError("the tokenizer is missing, expected the model's own behind it: (model, tokenizer)")
        return OurModel(model, tokenizer)
    if tokenizer is None:
        return model
    from .hf_model import HFModel

    return HFModel(model, tokenizer)


def open_model(checkpoint: str | Path, *, device: str = "cpu") -> Model:
    """The folder of a model, ours or Hugging Face's, or the name of a causal language model on its hub."""
    checkpoint = str(checkpoint)
    if is_ours(checkpoint):
        model, tokenizer = load(checkpoint).to(device), tokenizers.load(checkpoint)
        return OurModel(model, tokenizer, Path(checkpoint).name, identity(checkpoint))
    if find_spec("transformers") is None:
        what = f"{checkpoint} is not one of our models, and others need transformers"
        raise ModuleNotFoundError(f"{what}: pip install 'gated-deltanet[hf]'")
    from .hf_model import open_hf_model

    return open_hf_model(locate(checkpoint), device, Path(checkpoint).name, identity(checkpoint))


def is_ours(checkpoint: str) -> bool:
    """Or another's, by its folder or its name on the Hugging Face hub."""
    file = Path(checkpoint) / CONFIG
    if not file.exists():
        if Path(checkpoint).is_dir() or checkpoint in PRESETS or reach.hub_name(checkpoint) is None:
            raise not_saved(checkpoint)
        return False
    return read_json(file, strict=False).get("model_type") == MODEL_TYPE


def locate(checkpoint: str) -> str:
    """Of a model that is not ours: its folder, checked, or its name on the hub, if the hub can be asked."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return reach.on_hub(reach.hub_name(checkpoint) or checkpoint)
    if not any((folder / name).exists() for name in TOKENIZERS):  # transformers' own message names everything else
        raise FileNotFoundError(f"no tokenizer in {folder}, expected its files beside the model's: tokenizer.json, …")
    return checkpoint


def check_checkpoint(checkpoint: str) -> None:
    """That there is one, before it is opened, which may take a while."""
    if not is_ours(checkpoint):
        locate(checkpoint)


def identity(checkpoint: str) -> str:
    """The files of its folder as they are now, or its name on the hub."""
    files = sorted(Path(checkpoint).glob("*")) if Path(checkpoint).is_dir() else []
    found = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return sha256(repr((checkpoint, found)).encode()).hexdigest()
