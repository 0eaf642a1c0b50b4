"""All cells of a target: which there are, which are done, and the others run side by side."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.naming import unknown

from . import cells, systems
from .cells import AnyCell, Cell, Scale, TaskCell
from .verdicts import CLOSE_LOOKS, LOOKS

TEXT = ("table2", "table3", "table4", "table5", "fig2")  # one model serves them all
TASKS = {  # models of each synthetic task
    "table1": {"rewriting": ("gdn", "deltanet", "longhorn", "mamba2", "retnet", "linear-attention")},
    "tracking": {
        "parity": ("n_h = 1, β ≤ 1", "n_h = 1, β ≤ 2"),
        "s3": ("n_h = 1, β ≤ 2", "n_h = 2, β ≤ 1", "n_h = 2, β ≤ 2"),
        "s5": ("n_h = 1, β ≤ 2", "n_h = 4, β ≤ 1", "n_h = 4, β ≤ 2"),
    },
}
TARGETS = ("table1", *TEXT, "tableS1", "tableS2", "tracking")
FEW = LOOKS[0]  # seeds of what one look is enough for
CLOSE = ("gdn", "mamba2")  # which need more seeds than others to be told apart
SECONDS = 600.0  # that a cell takes, where none has been run


def grid(target: str) -> Sequence[AnyCell]:
    """Seed by seed, so that the first look comes as early as it can."""
    if target in TASKS:
        models = [(task, model) for task, names in TASKS[target].items() for model in names]
        return [TaskCell(task, model, seed) for seed in range(FEW) for task, model in models]
    if target == "tableS1":
        return [Cell(system, seed, measured=False) for seed in range(FEW) for system in systems.ABLATIONS]
    if target == "tableS2":
        others = [Cell(system, seed, measured=False) for seed in range(FEW) for system in systems.ORDERS[:3]]
        return [*others, *(Cell("gdn-h2", seed) for seed in range(FEW))]
    if target not in TEXT:
        raise unknown("target", target, (*TARGETS, "all"))
    close = [Cell(system, seed) for seed in range(LOOKS[-1], CLOSE_LOOKS[-1]) for system in CLOSE]
    return [Cell(system, seed) for seed in range(LOOKS[-1]) for system in systems.TEXT] + close


def cells_of(target: str) -> Sequence[AnyCell]:
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
    texts = sum(isinstance(cell, Cell) and not cells.find(cell, scale, folder) for cell in wanted)
    return Plan(len(wanted), len(known), texts * scale.tokens, left * each, texts * 12_000_000)


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
            tell(f"{i} of {len(todo)}: {running[done].system} {running[done].seed}, about {left:.0f} minutes left")


def finished(scale: Scale, folder: Path, wanted: Sequence[AnyCell]) -> Iterator[dict[str, Any]]:
    for cell in wanted:
        if found := cells.find(cell, scale, folder):
            yield found
