"""A run and its folder: recipe, tokenizer, metrics, samples, checkpoints, and at the end the model."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.optim import AdamW

from gated_deltanet.data import tokenizer
from gated_deltanet.data.rows import Rows
from gated_deltanet.models import CausalLM, get_preset

from . import checkpoint, durable, metrics, toml
from .corpora import fingerprint, make_tokenizer, open_data
from .counters import Counters
from .optimizer import make_optimizer
from .parallel import Place, barrier, build, check
from .recipe import Recipe, from_values
from .validation import some_documents

RECIPE, RUN, TOKENIZER, DATA = "recipe.toml", "run.json", "tokenizer.json", "data"
CHECKPOINTS, SAMPLES = "checkpoints", "samples"
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
    recipe = replace(recipe, dtype=resolved_dtype(recipe.dtype, place.device), data=from_anywhere(recipe.data))
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


def resume(folder: str | Path, place: Place, changes: Mapping[str, Any] | None = None) -> Run:
    """A run as its newest whole checkpoint left it, or if there was none yet, at its beginning."""
    folder, changes = Path(folder), changes or {}
    if not (folder / RECIPE).is_file():
        raise FileNotFoundError(f"no {RECIPE} in {folder}, expected the folder of a run")
    recipe = from_values({**toml.read(folder / RECIPE), **changes})
    if fixed := [name for name in changes if name not in CHANGEABLE]:
        raise ValueError(f"{fixed[0]} cannot change in a run that is taken up, only {', '.join(CHANGEABLE)} can")
    check(recipe.parallel)
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
    texts = make_tokenizer(recipe)
    (folder / CHECKPOINTS).mkdir(parents=True)
    durable.write_text(folder / TOKENIZER, texts.to_str())
    durable.write_text(folder / RECIPE, toml.text(recipe))


def abandon(folder: Path) -> None:
    """Undo `begin`. Data that was prepared, perhaps for hours, stays."""
    for name in (RECIPE, TOKENIZER):
        (folder / name).unlink()
    (folder / CHECKPOINTS).rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()


def assemble(recipe: Recipe, folder: Path, place: Place) -> Run:
    """All but what was learnt."""
    texts = tokenizer.load(folder)
    train, valid = open_data(recipe, texts, folder / DATA, place.ranks)
    config = replace(get_preset(recipe.preset), vocab_size=train.vocab_size)
    model, objective = build(
        config, seed=recipe.seed, parallel=recipe.parallel, dtype=getattr(torch, recipe.dtype), place=place
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
            durable.write_json(file, {"data": found, "parameters": size(run.model), "versions": versions()})
    elif durable.read_json(file)["data"] != found:
        raise ValueError(f"the documents of {run.recipe.data} have changed since the run began; start a new one")


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def resolved_dtype(dtype: str, device: torch.device) -> str:
    """auto: bfloat16 where matrix products are faster in it, float32 elsewhere."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if has_bfloat16(device) else "float32"


def from_anywhere(data: str) -> str:
    """A path that is one also in another working directory; other sources as they are."""
    return str(Path(data).absolute()) if data != "stdlib" and Path(data).exists() else data


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
