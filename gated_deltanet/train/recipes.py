"""Recipes that have a name: the paper's, and one for each size of model, so that `gdn train PRESET` just works."""

from collections.abc import Mapping
from typing import Any

from gated_deltanet.models import get_preset
from gated_deltanet.naming import unknown

from .recipe import Recipe, from_values

Values = Mapping[str, Any]

FINEWEB = "hf:HuggingFaceFW/fineweb-edu:sample-100BT"
LLAMA = "meta-llama/Llama-2-7b-hf,mistral"  # the paper's; whoever may not have it gets as many tokens of another
PAPER = {
    "data": FINEWEB,
    "tokenizer": LLAMA,
    "valid": 1e-4,
    "checkpointing": True,
    "parallel": "fsdp",
    "sample_prompt": "The",
}
ABLATION = PAPER | {"tokens": "15B"}  # tables S.1 and S.2: 15 B tokens; the same batch and warm-up are our reading

RECIPES: dict[str, Values] = {
    "paper-1.3b": PAPER | {"preset": "gdn-1.3b"},  # section 4
    "paper-400m": ABLATION | {"preset": "gdn-400m"},  # table S.1
    "paper-500m": ABLATION | {"preset": "gdn-h1-official-0.4b"},  # table S.2's size; its orders: gdn-swa-mamba2-400m, …
    "small": {
        "tokenizer": "bpe:8192",
        "length": 1024,
        "tokens": "50M",
        "batch_tokens": 32_768,
        "micro_rows": 8,
        "peak_lr": 1e-3,
        "warmup_tokens": "1M",
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
        "warmup_tokens": "0.5M",
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
        "warmup_tokens": "0.1M",
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
OF_SIZE = {"1.3b": "paper-1.3b", "400m": "paper-400m", "0.4b": "paper-500m"}


def resolve(preset: str | None = None, name: str | None = None, *layers: Values) -> Recipe:
    """The recipe of that name, or of the preset's size, changed by each layer in turn: a file, then the command line.

    A layer may name a preset, and the file a recipe; the one given first counts, a preset on the command line most.
    """
    given = {key: value for layer in layers for key, value in layer.items()}
    name = name or given.pop("recipe", None)
    given.pop("recipe", None)
    preset = preset or given.pop("preset", None)
    given.pop("preset", None)
    if name is None and preset is None:
        raise ValueError(f"there is nothing to train, expected a preset such as gdn-tiny, or a recipe: {names()}")
    return from_values(
        {**values_of(name or default_name(str(preset))), **({"preset": preset} if preset else {}), **given}
    )


def values_of(name: str) -> Values:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


def default_name(preset: str) -> str:
    """Of a preset's size, the last part of its name."""
    get_preset(preset)
    size = preset.rpartition("-")[2]
    return OF_SIZE.get(size, size)


def names() -> str:
    return ", ".join(RECIPES)
