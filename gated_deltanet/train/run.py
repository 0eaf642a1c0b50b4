"""A run and its folder: recipe, tokenizer, metrics, samples, checkpoints, and at the end the model."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.optim import AdamW

from gated_deltanet import files
from gated_deltanet.data import tokenizer
from gated_deltanet.data.chat import TEMPLATE, read_template
from gated_deltanet.data.rows import Rows
from gated_deltanet.interop.folder import load_config, read_config
from gated_deltanet.models import CausalLM, ModelConfig, get_preset
from gated_deltanet.models.config import changed

from . import checkpoint, metrics
from .data import find_chat_template, fingerprint, make_tokenizer, open_data
from .parallel import Place, barrier, build, check
from .recipe import Recipe, as_toml, from_values, read_recipe, to_values
from .step import Counters, make_optimizer
from .validation import some_documents

RECIPE, RUN, MODEL, TOKENIZER, DATA = "recipe.toml", "run.json", "model.json", "tokenizer.json", "data"
CHECKPOINTS, SAMPLES = "checkpoints", "samples"
NAMES = ("", "stdlib", "bytes", "mistral")  # that are no paths, whatever there is in the working directory
CHANGEABLE = (  # in a run that is taken up: nothing that changes what is learnt
    "micro_rows",
    "checkpointing",
    "compile",
    "parallel",
    "validate_every",
    "validate_tokens",
    "checkpoint_every",
    "keep",
    "sample_tokens",
    "sample_prompt",
    "bad_steps",
)


class Began(TypedDict):
    """What the run.json of a run holds."""

    data: str
    """The fingerprint of its documents."""
    parameters: int
    versions: dict[str, str]


@dataclass(frozen=True)
class Run:
    folder: Path
    recipe: Recipe
    place: Place
    tokenizer: Tokenizer
    train: Rows
    valid: Rows
    model: CausalLM
    objective: nn.Module  # the model as DDP or FSDP wraps it
    optimizer: AdamW
    counters: Counters

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.recipe.dtype)

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS


def start(recipe: Recipe, folder: str | Path, place: Place) -> Run:
    """A new run in a folder that does not exist or is empty. If it cannot start, nothing is left of it."""
    folder = Path(folder)
    check(recipe.parallel)
    paths = {name: from_anywhere(getattr(recipe, name)) for name in ("data", "model", "init", "tokenizer")}
    recipe = replace(recipe, dtype=resolved_dtype(recipe.dtype, place.device), **paths)
    if place.rank == 0:
        begin(folder, recipe)
    barrier(place)
    try:
        run = assemble(recipe, folder, place)
    except Exception:
        if place.rank == 0:
            abandon(folder)
        raise
    check_data(run)
    return run


def restore(folder: str | Path, place: Place, changes: Mapping[str, Any] | None = None) -> Run:
    """A run as its newest whole checkpoint left it, or if there was none yet, at its beginning."""
    folder, changes = Path(folder), changes or {}
    if not (folder / RECIPE).is_file():
        raise FileNotFoundError(f"no {RECIPE} in {folder}, expected the folder of a run")
    recipe = from_values({**to_values(read_recipe(folder / RECIPE)), **changes})
    if fixed := [name for name in changes if name not in CHANGEABLE]:
        raise ValueError(f"{fixed[0]} cannot change in a run that is taken up, only {', '.join(CHANGEABLE)} can")
    check(recipe.parallel)
    if place.rank == 0:
        clear(folder)
    barrier(place)
    run = assemble(recipe, folder, place)
    check_data(run)
    run = replace(run, counters=checkpoint.load(run.checkpoints, run.model, run.optimizer, place))
    if place.rank == 0:
        metrics.forget_after(folder / metrics.FILE, run.counters.step)
    barrier(place)
    return run


def begin(folder: Path, recipe: Recipe) -> None:
    """The folder, with what says how the run is made; the recipe last: with it, the run can be taken up."""
    if folder.exists() and {path.name for path in folder.iterdir()} - {DATA}:
        raise ValueError(f"{folder} is not empty: go on with --resume {folder}, or name another folder with --out")
    if recipe.init:
        load_config(recipe.init)  # or it is no saved model, which is said before its tokenizer is looked for
    texts, chat_template = make_tokenizer(recipe), find_chat_template(recipe)
    config = config_for(recipe, texts)
    (folder / CHECKPOINTS).mkdir(parents=True)
    files.write_text(folder / TOKENIZER, texts.to_str())
    if chat_template is not None:
        files.write_text(folder / TEMPLATE, chat_template)
    files.write_json(folder / MODEL, config.to_dict())
    files.write_text(folder / RECIPE, as_toml(recipe))


def config_for(recipe: Recipe, texts: Tokenizer) -> ModelConfig:
    """The preset, the file, or the model to start from, with the changes; its vocabulary is that of the tokenizer."""
    if any(change.partition("=")[0].strip() == "vocab_size" for change in recipe.set):
        raise ValueError("vocab_size cannot be set: it is the tokenizer's, expected another --tokenizer instead")
    if recipe.preset:
        config = get_preset(recipe.preset)
    else:
        config = read_config(Path(recipe.model)) if recipe.model else load_config(recipe.init)
    size = tokenizer.vocab_size(texts)
    if recipe.init:
        size = load_config(recipe.init).vocab_size
        if tokenizer.fingerprint(tokenizer.load(recipe.init)) != tokenizer.fingerprint(texts):
            how = f"prepare the data with --tokenizer {recipe.init}, or give no --tokenizer"
            raise ValueError(f"the tokenizer is not that of {recipe.init}, expected the same: {how}")
    return replace(changed(config, recipe.set), vocab_size=size)


def clear(folder: Path) -> None:
    """Remove what a killed process left. Checkpoints and prepared data are cleared where they are written."""
    for each in (folder, folder / SAMPLES):
        files.clear(each)


def abandon(folder: Path) -> None:
    """Undo `begin`. Data that was prepared, perhaps for hours, stays."""
    for name in (RECIPE, MODEL, TOKENIZER, TEMPLATE):
        (folder / name).unlink(missing_ok=True)
    (folder / CHECKPOINTS).rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()


def assemble(recipe: Recipe, folder: Path, place: Place) -> Run:
    """All but what was learnt."""
    texts = tokenizer.load(folder)
    train, valid = open_data(recipe, texts, read_template(folder), folder / DATA, place.ranks)
    begun = any(checkpoint.checkpoints(folder / CHECKPOINTS))  # which then hold the weights
    model, objective = build(
        read_config(folder / MODEL),
        Path(recipe.init) if recipe.init and not begun else None,
        start=recipe.start,
        seed=recipe.seed,
        parallel=recipe.parallel,
        dtype=getattr(torch, recipe.dtype),
        place=place,
    )
    model.checkpointing = recipe.checkpointing
    if recipe.compile:
        for block in model.layers:
            block.compile()
    return Run(
        folder,
        recipe,
        place,
        texts,
        Rows(train, recipe.length, recipe.seed, recipe.reset),
        Rows(some_documents(valid, recipe.validate_tokens), recipe.length, None, recipe.reset),
        model,
        objective,
        make_optimizer(model, recipe),
        Counters(),
    )


def check_data(run: Run) -> None:
    """That the data is what the run began with, which is recorded when it begins."""
    file, found = run.folder / RUN, fingerprint(run.train.corpus)
    if not file.exists():
        barrier(run.place)  # no rank looks while the first writes
        if run.place.rank == 0:
            files.write_json(file, {"data": found, "parameters": size(run.model), "versions": versions()})
    elif files.read_json(file, Began)["data"] != found:
        change = f"the documents of {run.recipe.data} have changed since the run began"
        raise ValueError(f"{change}, as {file} tells; start a new one")


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def resolved_dtype(dtype: str, device: torch.device) -> str:
    """auto: bfloat16 where matrix products are faster in it, float32 elsewhere."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if has_bfloat16(device) else "float32"


def from_anywhere(data: str) -> str:
    """A path that is one also in another working directory; other sources as they are."""
    return str(Path(data).absolute()) if data not in NAMES and Path(data).exists() else data


def has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def versions() -> dict[str, str]:
    packages = ("gated-deltanet", "torch", "numpy", "safetensors", "tokenizers")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": " ".join(sys.argv),
        **{package: version(package) for package in packages},
    }
