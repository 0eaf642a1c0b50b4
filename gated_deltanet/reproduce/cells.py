"""One run of one system with one seed, and the file that holds all that was measured of it."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

import gated_deltanet
from gated_deltanet.bench import machine
from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.files import as_json, read_json, write_json, write_text
from gated_deltanet.interop.folder import load
from gated_deltanet.models import count
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
    system: str
    seed: int
    measured: bool = True  # with all of `measures`; else only the validation loss

    def __str__(self) -> str:
        return f"{self.system.replace(' ', '-')} {self.seed}"

    @property
    def file(self) -> str:
        return f"{str(self).replace(' ', '-').replace('&', 'and').lower()}.json"


def settings(cell: Cell, scale: Scale) -> dict[str, Any]:
    """All that decides what is learnt and measured, for people and for the hash."""
    config = systems.config_of(cell.system, scale.size, scale.vocab_size)
    shared = {name: value for name, value in asdict(scale).items() if name not in ("rates", "peak_lr")}
    return {"seed": cell.seed, "peak_lr": scale.rate(cell.system), **shared, "model": config.to_dict()}


def hash_of(values: dict[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def find(cell: Cell, scale: Scale, folder: Path) -> dict[str, Any] | None:
    """What was measured, if it was, with the settings of now."""
    file = folder / cell.file
    if not file.exists():
        return None
    found = read_json(file)
    return found if found["hash"] == hash_of(settings(cell, scale)) else None


def run(cell: Cell, scale: Scale, data_dir: Path, work: Path, folder: Path) -> dict[str, Any]:
    """Train, which goes on where it was stopped, measure, and write the cell's file. work: for what is not kept."""
    began = perf_counter()
    torch.set_num_threads(1)
    prepared = texts.make(data_dir, work / f"texts-{scale.tokens}-{scale.vocab_size}", scale.tokens, scale.vocab_size)
    run_folder = work / cell.file.removesuffix(".json")
    if (run_folder / RECIPE).exists():
        resume(run_folder, quiet=True)
    else:
        train(recipe_of(cell, scale, prepared, work), run_folder, quiet=True)
    model = load(run_folder)
    trained = perf_counter() - began
    limit = scale.limit if cell.measured else None
    found = {
        "system": cell.system,
        "seed": cell.seed,
        "hash": hash_of(settings(cell, scale)),
        "settings": settings(cell, scale),
        "parameters": count.parameters(model.config),
        "state_bytes": count.state_bytes(model.config),
        "measures": measure(OurModel(model, tokenizer.load(run_folder)), scale.length, data_dir, limit),
        "seconds": {"training": round(trained), "measuring": round(perf_counter() - began - trained)},
        "processor": machine.describe_cpu()["model"],
        "sources": sources(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / cell.file, as_json(found) + "\n")
    return found


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
