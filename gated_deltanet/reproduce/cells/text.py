"""A language model: trained on text, and measured on all that tables 3 to 5 and Fig. 2 ask.

Small ones are trained in this process, those of the paper's size by its recipe, with torchrun.
"""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.files import read_json, write_json
from gated_deltanet.interop.folder import load
from gated_deltanet.models import count
from gated_deltanet.train import Outcome, Recipe, metrics, resolve, resume, train
from gated_deltanet.train.data import is_prepared
from gated_deltanet.train.recipe import read_recipe
from gated_deltanet.train.run import RECIPE, RUN

from .. import systems
from ..scales import Scale
from . import corpus, described, file_of, hash_of
from .measures import measure

PREPARED = "fineweb_edu"


class TextCell(NamedTuple):
    model: str
    seed: int
    measured: bool = True  # with all of `measures`; else only the validation loss
    share: int = 1  # of the scale's tokens, one in so many
    rate: float | None = None  # of a pilot; None: the one it has found best

    @property
    def system(self) -> str:
        return self.model + (f" {self.rate:g}" if self.rate else "")

    @property
    def threads(self) -> int:
        return 1

    def settings(self, scale: Scale) -> dict[str, Any]:
        config = systems.config_of(self.model, scale)
        elsewhere = ("rates", "seeds") if self.measured else ("rates", "seeds", "limit")
        shared = {name: value for name, value in asdict(self.own(scale)).items() if name not in elsewhere}
        return {**shared, "model": described(config)}

    def own(self, scale: Scale) -> Scale:
        """With its own learning rate and tokens."""
        rate = self.rate or scale.rate(self.model)
        return replace(scale, tokens=scale.tokens // self.share, peak_lr=rate, rates=())

    def tokens(self, scale: Scale) -> int:
        return self.own(scale).tokens

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        folder = self.trained(scale, data_dir, work)
        model, limit = load(folder), scale.limit if self.measured else None
        trained = sum(step.get("seconds", 0) for step in metrics.read(folder / metrics.FILE))  # also before a kill
        began = perf_counter()
        return {
            "parameters": count.parameters(model.config),
            "state_bytes": count.state_bytes(model.config),
            "measures": measure(OurModel(model, tokenizer.load(folder)), scale.length, data_dir, limit),
            "dtype": read_recipe(folder / RECIPE).dtype,
            "data": read_json(folder / RUN)["data"],
            "seconds": {"training": round(trained), "measuring": round(perf_counter() - began)},
        }

    def trained(self, scale: Scale, data_dir: Path, work: Path) -> Path:
        """The folder of the model. Training goes on where it was stopped. work: for what is not kept."""
        folder, own = folder_of(self, scale, work), self.own(scale)
        if scale.recipe:
            subprocess.run(command(self, scale, data_dir, work), check=True)
        elif (folder / RECIPE).exists():
            finished(resume(folder, quiet=True))
        else:
            prepared = corpus.make(data_dir, work / f"texts-{own.tokens}-{own.vocab_size}", own.tokens, own.vocab_size)
            finished(train(recipe_of(self, own, prepared, model_file(self, scale, work)), folder, quiet=True))
        return folder


def folder_of(cell: TextCell, scale: Scale, work: Path) -> Path:
    """Another one for other settings: nothing goes on that was begun with those."""
    return work / f"{file_of(cell).removesuffix('.json')}-{hash_of(cell, scale)}"


def finished(outcome: Outcome) -> None:
    step, steps = outcome.counters.step, outcome.recipe.steps
    if step < steps:
        raise InterruptedError(f"{outcome.folder} was stopped after step {step} of {steps}; the same command goes on")


def command(cell: TextCell, scale: Scale, data_dir: Path, work: Path) -> list[str]:
    """One process for each GPU. data_dir: if it has a folder "fineweb_edu" that `gdn data prepare` made, that is read.

    Without it the recipe's own source is: FineWeb-Edu, from the hub.
    """
    processes = ["--standalone", "--nproc-per-node", str(max(1, torch.cuda.device_count()))]
    run = [sys.executable, "-m", "torch.distributed.run", *processes, "-m", "gated_deltanet", "train"]
    folder = folder_of(cell, scale, work)
    if (folder / RECIPE).exists():
        return [*run, "--resume", str(folder)]
    prepared = data_dir / PREPARED
    data = ["--data", str(prepared), "--tokenizer", str(prepared)] if is_prepared(prepared) else []
    settings = ["--model", str(model_file(cell, scale, work)), "--seed", str(cell.seed)]
    return [*run, "--recipe", str(scale.recipe), *settings, *data, "--out", str(folder)]


def model_file(cell: TextCell, scale: Scale, work: Path) -> Path:
    file = folder_of(cell, scale, work).with_suffix(".json")
    write_json(file, systems.config_of(cell.model, scale).to_dict())
    return file


def recipe_of(cell: TextCell, own: Scale, prepared: Path, model: Path) -> Recipe:
    """The paper's, without resets, at a laptop's scale; in bfloat16, as the paper's, where the processor has it."""
    values = {
        "model": str(model),
        "data": str(prepared),
        "tokenizer": str(prepared),
        "seed": cell.seed,
        "reset": False,
        "length": own.length,
        "tokens": own.tokens,
        "batch_tokens": own.batch_tokens,
        "micro_rows": own.batch_tokens // own.length,
        "peak_lr": own.peak_lr,
        "warmup_tokens": own.tokens // 100,
        "validate_every": 10**6,
        "validate_tokens": 20_000,
        "sample_tokens": 0,
        "checkpoint_every": 200,
        "keep": 1,
    }
    return resolve(None, "nano", values)
