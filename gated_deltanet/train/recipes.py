"""Recipes that have a name: the paper's, and one for each size of model, so that `gdn train PRESET` just works."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gated_deltanet.interop.folder import load_config, read_config
from gated_deltanet.models import count, get_preset
from gated_deltanet.naming import unknown

from .recipe import Recipe, from_values, typed

Values = Mapping[str, Any]

FINEWEB = "hf:HuggingFaceFW/fineweb-edu:sample-100BT"
LLAMA = "meta-llama/Llama-2-7b-hf,mistral"  # the paper's; whoever may not have it gets as many tokens of another
PAPER = {
    "data": FINEWEB,
    "tokenizer": LLAMA,
    "valid": 1e-4,
    "reset": False,  # as in official code: rows are cut from a stream of documents, whose borders nothing knows
    "checkpointing": True,
    "parallel": "fsdp",
    "sample_prompt": "The",
}
ABLATION = PAPER | {"tokens": "15B", "warmup_tokens": "150M"}  # tables S.1 and S.2; warm-up is 1 % in official code

RECIPES: dict[str, Values] = {
    "paper-1.3b": PAPER | {"preset": "gdn-1.3b"},  # section 4
    "paper-400m": ABLATION | {"preset": "gdn-official-0.4b"},  # table S.1, whose "Head Dim 128" is this preset's
    "paper-500m": ABLATION | {"preset": "gdn-h2-500m"},  # table S.2; its other orders: gdn-swa-mamba2-500m, …
    "small": {
        "tokenizer": "bpe:8192",
        "length": 1024,
        "tokens": "50M",
        "batch_tokens": 32_768,
        "micro_rows": 8,
        "peak_lr": 1e-3,
        "warmup_tokens": "0.5M",  # 1 %, as the paper has it
        "validate_every": 100,
        "validate_tokens": "1M",
        "checkpoint_every": 100,
    },
    "tiny": {
        "length": 512,
        "tokens": "20M",
        "batch_tokens": 16_384,
        "micro_rows": 32,
        "peak_lr": 2e-3,
        "warmup_tokens": "0.2M",
        "validate_every": 200,
        "validate_tokens": "0.5M",
        "checkpoint_every": 100,
    },
    "nano": {
        "length": 256,
        "tokens": "4M",
        "batch_tokens": 8192,
        "micro_rows": 32,
        "peak_lr": 4e-3,
        "warmup_tokens": "40K",
        "validate_every": 200,
        "validate_tokens": "0.2M",
        "checkpoint_every": 100,
    },
    "demo": {  # small steps: with so few tokens their number counts most
        "tokenizer": "bpe:2048",
        "valid": 0.02,
        "length": 256,
        "tokens": "3M",
        "batch_tokens": 2048,
        "micro_rows": 8,
        "peak_lr": 4e-3,
        "warmup_tokens": "0.1M",
        "validate_every": 400,
        "checkpoint_every": 400,
        "sample_tokens": 0,
    },
}
LARGEST = {"nano": 2e6, "tiny": 1e7, "small": 1e8, "paper-400m": 8e8}  # parameters of a model of one's own
OF_SIZE = {"1.3b": "paper-1.3b", "400m": "paper-400m", "0.4b": "paper-400m", "500m": "paper-500m"}


def resolve(preset: str | None = None, name: str | None = None, *layers: Values) -> Recipe:
    """The recipe of that name, or of the preset's size, changed by each layer in turn: a file, then the command line.

    A layer may name a preset or a model's file, and the file a recipe. Of presets and models the last one counts.
    """
    layers = (*layers[:-1], {**(layers[-1] if layers else {}), **({"preset": preset} if preset else {})})
    given = {key: value for layer in layers for key, value in layer.items()}
    own = given.pop("recipe", None)
    name = name or own
    model = model_of(({} if name is None else values_of(name), *layers))
    init = given.get("init", "")
    if name is None and not any(model.values()) and not init:
        raise ValueError(f"there is nothing to train, expected a preset such as gdn-tiny, or a recipe: {names()}")
    values = {**values_of(name or default_name(model, init)), **given, **model}
    if init and not names_tokenizer(layers):
        values["tokenizer"] = init
    return from_values(values if "warmup_tokens" in given else {**values, "warmup_tokens": warmup_of(values)})


def names_tokenizer(layers: Sequence[Values]) -> bool:
    """Whether a tokenizer is named along with the model to start from, or later."""
    at = max(i for i, layer in enumerate(layers) if layer.get("init"))
    return any("tokenizer" in layer for layer in layers[at:])


def model_of(layers: Sequence[Values]) -> dict[str, Any]:
    """The preset and the model's file, one of which is empty, of the last layer that has one."""
    named = ({name: layer.get(name) or "" for name in ("preset", "model")} for layer in reversed(layers))
    return next((each for each in named if any(each.values())), {"preset": "", "model": ""})


def warmup_of(values: Values) -> int:
    """Where nobody gave one: the recipe's, or a tenth of a run that is too short for it."""
    tokens, warmup = (typed(name, values.get(name, getattr(Recipe, name)), int) for name in ("tokens", "warmup_tokens"))
    return min(warmup, tokens // 10)


def values_of(name: str) -> Values:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


def default_name(model: Values, init: str) -> str:
    """Of a preset's size, the last part of its name; of another model by the number of its parameters."""
    if not model["preset"]:
        config = read_config(Path(model["model"])) if model["model"] else load_config(init)
        n = count.parameters(config)
        return next((name for name, most in LARGEST.items() if n <= most), "paper-1.3b")
    get_preset(model["preset"])
    size = str(model["preset"]).rpartition("-")[2]
    return OF_SIZE.get(size, size)


def names() -> str:
    return ", ".join(RECIPES)
