"""One run of one system with one seed, and the file that holds all that was measured of it."""

import json
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch

import gated_deltanet
from gated_deltanet.bench import machine
from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.files import as_json, read_json, write_json, write_text
from gated_deltanet.interop.folder import load
from gated_deltanet.models import count
from gated_deltanet.synthetic import suite
from gated_deltanet.synthetic.tasks import TASKS
from gated_deltanet.train import Recipe, resolve, resume, train
from gated_deltanet.train.run import RECIPE

from . import systems, texts
from .measures import measure

SOURCES = ("layers", "models", "train")  # which decide what a run learns


@dataclass(frozen=True)
class Scale:
    """What all cells have in common."""

    size: str  # of the presets
    vocab_size: int
    tokens: int
    length: int
    batch_tokens: int
    peak_lr: float
    rates: tuple[tuple[str, float], ...] = ()  # of systems that learn best at another
    limit: int = 300  # questions of each set

    def rate(self, system: str) -> float:
        return dict(self.rates).get(system, self.peak_lr)


LAPTOP = Scale("nano", 2048, tokens=4_000_000, length=512, batch_tokens=4096, peak_lr=4e-3)


class Cell(NamedTuple):
    """A text model."""

    system: str
    seed: int
    measured: bool = True  # with all of `measures`; else only the validation loss

    @property
    def file(self) -> str:
        return f"{file_name(self.system)}-{self.seed}.json"

    def settings(self, scale: Scale) -> dict[str, Any]:
        config = systems.config_of(self.system, scale.size, scale.vocab_size)
        shared = {name: value for name, value in asdict(scale).items() if name not in ("rates", "peak_lr")}
        return {"peak_lr": scale.rate(self.system), **shared, "model": config.to_dict()}

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        """Train, which goes on where it was stopped, and measure. work: for what is not kept."""
        began = perf_counter()
        name = f"texts-{scale.tokens}-{scale.vocab_size}"
        prepared = texts.make(data_dir, work / name, scale.tokens, scale.vocab_size)
        folder = work / self.file.removesuffix(".json")
        if (folder / RECIPE).exists():
            resume(folder, quiet=True)
        else:
            train(recipe_of(self, scale, prepared, work), folder, quiet=True)
        model, trained = load(folder), perf_counter() - began
        limit = scale.limit if self.measured else None
        return {
            "parameters": count.parameters(model.config),
            "state_bytes": count.state_bytes(model.config),
            "measures": measure(OurModel(model, tokenizer.load(folder)), scale.length, data_dir, limit),
            "seconds": {"training": round(trained), "measuring": round(perf_counter() - began - trained)},
        }


class TaskCell(NamedTuple):
    """A small model on a synthetic task."""

    task: str
    model: str
    seed: int

    @property
    def system(self) -> str:
        return f"{self.task}: {self.model}"

    @property
    def file(self) -> str:
        return f"{file_name(self.system)}-{self.seed}.json"

    def settings(self, scale: Scale) -> dict[str, Any]:
        task = TASKS[self.task]
        levels = {"trained": task.trained, "scored": task.scored, "steps": task.steps, "peak_lr": task.peak_lr}
        return levels | {"model": suite.Cell(self.task, self.model).config().to_dict()}

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        found = suite.measure(suite.Cell(self.task, self.model), seed=self.seed)
        if "left_out" in found:  # which is no score of 0
            raise ValueError(f"{self.system}, seed {self.seed}, has no score: {found['left_out']}")
        return {
            "parameters": found["parameters"],
            "state_bytes": found["state_bytes"],
            "measures": {name: found[name] for name in ("accuracy", "points", "steps")},
            "seconds": {"training": round(found["seconds"])},
        }


AnyCell: TypeAlias = Cell | TaskCell


def file_name(system: str) -> str:
    """Of letters that any file system takes."""
    plain = system.lower().replace("β", "beta").replace("≤", "to").replace("&", "and")
    return "-".join(re.findall(r"[a-z0-9_+]+", plain))


def hash_of(cell: AnyCell, scale: Scale) -> str:
    """Of all that decides what is learnt and measured."""
    values = {"seed": cell.seed, **cell.settings(scale)}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def find(cell: AnyCell, scale: Scale, folder: Path) -> dict[str, Any] | None:
    """What was measured, if it was, with the settings of now."""
    file = folder / cell.file
    if not file.exists():
        return None
    found = read_json(file)
    return found if found["hash"] == hash_of(cell, scale) else None


def run(cell: AnyCell, scale: Scale, data_dir: Path, work: Path, folder: Path) -> dict[str, Any]:
    """In one thread; and write the cell's file."""
    torch.set_num_threads(1)
    found = {
        "system": cell.system,
        "seed": cell.seed,
        "hash": hash_of(cell, scale),
        "settings": cell.settings(scale),
        **cell.run(scale, data_dir, work),
        "processor": machine.describe_cpu()["model"],
        "sources": sources(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / cell.file, as_json(found) + "\n")
    return read_json(folder / cell.file)


def recipe_of(cell: Cell, scale: Scale, prepared: Path, work: Path) -> Recipe:
    """The paper's, without resets, at this scale."""
    file = work / f"model-{cell.file}"
    write_json(file, systems.config_of(cell.system, scale.size, scale.vocab_size).to_dict())
    values = {
        "model": str(file),
        "data": str(prepared),
        "tokenizer": str(prepared),
        "seed": cell.seed,
        "reset": False,
        "length": scale.length,
        "tokens": scale.tokens,
        "batch_tokens": scale.batch_tokens,
        "micro_rows": scale.batch_tokens // scale.length,
        "peak_lr": scale.rate(cell.system),
        "warmup_tokens": scale.tokens // 40,
        "dtype": "float32",
        "validate_every": 10**6,
        "validate_tokens": 20_000,
        "sample_tokens": 0,
        "checkpoint_every": 200,
        "keep": 1,
    }
    return resolve(None, "nano", values)


def sources() -> str:
    """A hash of the code that decides what is learnt."""
    package = Path(gated_deltanet.__file__).parent
    digest = sha256()
    for path in sorted(path for name in SOURCES for path in (package / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
