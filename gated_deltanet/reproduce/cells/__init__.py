"""One run of one system with one seed, and the file that holds all that was measured of it."""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import fields
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch

import gated_deltanet
from gated_deltanet.bench import machine
from gated_deltanet.files import as_json, read_json, write_text
from gated_deltanet.models import ModelConfig

from ..scales import Scale

SOURCES = ("layers", "models", "train")  # which decide what a run learns


class Cell(Protocol):
    """Those of text, taught, tasks and speed have them."""

    @property
    def system(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def threads(self) -> int: ...  # 0: all, and nothing else runs meanwhile

    def settings(self, scale: Scale) -> dict[str, Any]:
        """All that decides what is learnt and measured, but the seed."""
        ...

    def tokens(self, scale: Scale) -> int:
        """That it trains on, of texts."""
        ...

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        """parameters, state_bytes, measures and seconds; by system where one run measures several."""
        ...


def file_of(cell: Cell) -> str:
    """Of letters that any file system takes."""
    plain = cell.system.lower().replace("β", "beta").replace("≤", "to").replace("&", "and")
    return "-".join((*re.findall(r"[a-z0-9_+]+", plain), f"{cell.seed}.json"))


def hash_of(cell: Cell, scale: Scale) -> str:
    values = {"seed": cell.seed, **cell.settings(scale)}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def described(config: ModelConfig) -> dict[str, Any]:
    """Fields that are not as they are by default: one that is added later changes no hash."""

    def differing(values: Any) -> dict[str, Any]:
        usual = {field.name: field.default for field in fields(values)}
        return {name: value for name, value in vars(values).items() if value != usual[name]}

    mixers = [{"mixer": type(mixer).__name__, **differing(mixer)} for mixer in config.mixers]
    return differing(config) | {"mixers": mixers}


def find(cell: Cell, scale: Scale, folder: Path) -> dict[str, Any] | None:
    """What was measured, if it was, with the settings of now."""
    file = folder / file_of(cell)
    if not file.exists():
        return None
    found = read_json(file)
    return found if found["hash"] == hash_of(cell, scale) else None


def run(cell: Cell, scale: Scale, data_dir: Path, work: Path, folder: Path) -> dict[str, Any]:
    """And write the cell's file."""
    if cell.threads:
        torch.set_num_threads(cell.threads)
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
    write_text(folder / file_of(cell), as_json(found) + "\n")
    return read_json(folder / file_of(cell))


def run_all(
    todo: Sequence[Cell], scale: Scale, data_dir: Path, work: Path, folder: Path, jobs: int
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """`jobs` of them side by side, each with what was measured as soon as it is done. Ctrl-C stops: none waits."""
    waiting = iter(todo)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:

        def begin(n: int) -> dict[Future[dict[str, Any]], Cell]:
            return {pool.submit(run, cell, scale, data_dir, work, folder): cell for cell in islice(waiting, n)}

        running = begin(jobs)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
                running |= begin(1)


def sources() -> str:
    """A hash of the code that decides what is learnt."""
    package = Path(gated_deltanet.__file__).parent
    digest = sha256()
    for path in sorted(path for name in SOURCES for path in (package / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
