"""All cells of a target: which there are, which are done, and the others run side by side."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.naming import unknown

from . import cells, systems
from .cells import Cell, Scale
from .verdicts import CLOSE_LOOKS, LOOKS

TEXT = ("table2", "table3", "table4", "table5", "fig2")  # one model serves them all
TARGETS = (*TEXT, "tableS1", "tableS2")
FEW = LOOKS[0]  # seeds of tables S.1 and S.2
CLOSE = ("gdn", "mamba2")  # which need more seeds than others to be told apart
SECONDS = 600.0  # that a cell takes, where none has been run


def grid(target: str) -> list[Cell]:
    """Seed by seed, so that the first look comes as early as it can."""
    if target == "tableS1":
        return [Cell(system, seed, measured=False) for seed in range(FEW) for system in systems.ABLATIONS]
    if target == "tableS2":
        return [Cell(system, seed, measured=False) for seed in range(FEW) for system in systems.ORDERS[:3]] + [
            Cell("gdn-h2", seed) for seed in range(FEW)
        ]
    if target not in TEXT:
        raise unknown("target", target, (*TARGETS, "all"))
    close = [Cell(system, seed) for seed in range(LOOKS[-1], CLOSE_LOOKS[-1]) for system in CLOSE]
    return [Cell(system, seed) for seed in range(LOOKS[-1]) for system in systems.TEXT] + close


def cells_of(target: str) -> list[Cell]:
    """target: or "all"."""
    chosen = TARGETS if target == "all" else (target,)
    return list(dict.fromkeys(cell for each in chosen for cell in grid(each)))


class Plan(NamedTuple):
    cells: int
    done: int
    tokens: int  # still to be trained on
    seconds: float  # of one core, still
    bytes: int  # of disk, while it runs


def plan(target: str, scale: Scale, folder: Path) -> Plan:
    wanted = cells_of(target)
    known = [found for cell in wanted if (found := cells.find(cell, scale, folder))]
    took = [sum(found["seconds"].values()) for found in known]
    left = len(wanted) - len(known)
    each = sum(took) / len(took) if took else SECONDS
    return Plan(len(wanted), len(known), left * scale.tokens, left * each, left * 12_000_000)


def run(
    target: str,
    scale: Scale,
    data_dir: Path,
    out: Path,
    *,
    work: Path,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Run the cells that are not there yet, `jobs` at a time, one thread each. tell: is told how far it is."""
    todo = [cell for cell in cells_of(target) if cells.find(cell, scale, out) is None]
    began = perf_counter()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(cells.run, cell, scale, data_dir, work, out): cell for cell in todo}
        for i, done in enumerate(as_completed(running), 1):
            done.result()
            left = (perf_counter() - began) / i * (len(todo) - i) / 60
            tell(f"{i} of {len(todo)}: {running[done]}, about {left:.0f} minutes left")


def finished(scale: Scale, folder: Path, wanted: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for cell in wanted:
        if found := cells.find(cell, scale, folder):
            yield found
