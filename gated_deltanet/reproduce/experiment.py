"""All cells of a target: which there are, which are done, and the others run side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.naming import unknown

from . import cells, systems
from .cells import Cell
from .cells.speed import SpeedCell
from .cells.tasks import MODELS, MQAR_MODELS, MQAR_STATES, MqarCell, TaskCell
from .cells.taught import LESSONS, TaughtCell
from .cells.text import TextCell
from .claims import CLAIMS, as_cells, seeds_needed
from .scales import Scale
from .verdicts import CLOSE_LOOKS, LOOKS

TEXT = ("table3", "table4", "fig2")  # one model of text serves them all
TAUGHT = {"table2": "needles", "table4": "recall", "table5": "recall"}
TASKS = {"table1": ("rewriting",), "tracking": ("parity", "s3", "s5")}
TARGETS = ("table1", "table2", "table3", "table4", "table5", "fig2", "fig3", "tableS1", "tableS2", "tracking")
FEW = LOOKS[0]  # seeds of what one look is enough for
CLOSE = ("gdn", "mamba2")  # which need more seeds than others to be told apart
ABLATED = 2  # one token in so many: the paper's ablations had fewer, too
SECONDS = 600.0  # that a cell takes, where none has been run


def grid(target: str, scale: Scale) -> Sequence[Cell]:
    """Seed by seed, so that the first look comes as early as it can."""
    few, many, more = (range(min(n, scale.seeds or n)) for n in (FEW, LOOKS[-1], CLOSE_LOOKS[-1]))
    if target in TASKS:
        models = [(task, model) for task in TASKS[target] for model in MODELS[task]]
        pairs = [(model, state) for state in MQAR_STATES for model in MQAR_MODELS] if target == "table1" else []
        tasks = [TaskCell(*each, seed) for seed in many for each in models]
        return [*tasks, *(MqarCell(*each, seed) for seed in few for each in pairs)]
    if target == "fig3":
        return [SpeedCell(seed) for seed in range(FEW)]
    if target == "tableS1":
        share = 1 if scale.recipe else ABLATED
        return [TextCell(system, seed, measured=False, share=share) for seed in few for system in systems.ABLATIONS]
    if target == "tableS2":
        others = [TextCell(system, seed, measured=False) for seed in few for system in systems.ORDERS[:3]]
        return [*others, *(TextCell("gdn-h2", seed) for seed in few)]
    if target not in (*TEXT, *TAUGHT):
        raise unknown("target", target, (*TARGETS, "all"))
    lesson = TAUGHT.get(target)
    taught = [TaughtCell(lesson, system, seed) for seed in many for system in LESSONS[lesson].rates] if lesson else []
    if target not in TEXT:
        return taught
    close = [TextCell(system, seed) for seed in more[len(many) :] for system in CLOSE]
    compared = few if target == "table3" and not scale.recipe else ()
    others = [TextCell(systems.MIXERS_ONLY, seed, measured=False) for seed in compared]
    return [*(TextCell(system, seed) for seed in many for system in systems.TEXT), *close, *others, *taught]


def cells_of(target: str, scale: Scale) -> Sequence[Cell]:
    """target: or "all"."""
    chosen = TARGETS if target == "all" else (target,)
    return list(dict.fromkeys(cell for each in chosen for cell in grid(each, scale)))


def left(target: str, scale: Scale, folder: Path) -> list[Cell]:
    """What is to be run next: for the first look, and then for the second at what the first could not tell."""
    wanted = cells_of(target, scale)
    done = as_cells(finished(scale, folder, wanted))
    needed = seeds_needed([claim for claim in CLAIMS if target in ("all", claim.target)], done)
    missing = [cell for cell in wanted if cells.find(cell, scale, folder) is None]
    return [cell for cell in missing if cell.seed < needed.get(cell.system, FEW)]


class Plan(NamedTuple):
    cells: int  # of both looks, the most there can be
    done: int
    left: int  # to be run next
    tokens: int  # still to be trained on
    seconds: float  # of one core, still
    bytes: int  # of disk, while it runs


def plan(target: str, scale: Scale, folder: Path) -> Plan:
    known = {cell: found for cell in cells_of("all", scale) if (found := cells.find(cell, scale, folder))}
    wanted, todo = cells_of(target, scale), left(target, scale, folder)
    tokens = sum(cell.tokens(scale) for cell in todo)
    texts = sum(cell.tokens(scale) > 0 for cell in todo)
    seconds = sum(expected_seconds(cell, known, scale) for cell in todo)
    done = len(known.keys() & set(wanted))
    return Plan(len(wanted), done, len(todo), tokens, seconds, texts * 12_000_000)


def expected_seconds(cell: Cell, known: Mapping[Cell, Mapping[str, Any]], scale: Scale) -> float:
    """By what others of its kind took, for each token where they train on text."""

    def size(each: Cell) -> int:
        return each.tokens(scale) or 1

    alike = [each for each in known if type(each) is type(cell)]
    took = sum(sum(known[each]["seconds"].values()) for each in alike)
    return took / sum(map(size, alike)) * size(cell) if alike else SECONDS


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
    """Run the cells that are missing, `jobs` at a time, one thread each: both looks. tell: is told how far it is."""
    while todo := left(target, scale, out):
        run_all(todo, scale, data_dir, out, work, jobs, tell)


def run_all(
    todo: Sequence[Cell],
    scale: Scale,
    data_dir: Path,
    out: Path,
    work: Path,
    jobs: int,
    tell: Callable[[str], None],
) -> None:
    """Those that need all threads come last, one by one; and so do those of a recipe of the paper, on all GPUs."""
    alone = [cell for cell in todo if not cell.threads or (scale.recipe and cell.tokens(scale))]
    began, done = perf_counter(), 0
    for some, side_by_side in (([cell for cell in todo if cell not in alone], jobs), (alone, 1)):
        for cell, _ in cells.run_all(some, scale, data_dir, work, out, side_by_side):
            done += 1
            minutes = (perf_counter() - began) / done * (len(todo) - done) / 60
            tell(f"{done} of {len(todo)}: {cell.system} {cell.seed}, about {minutes:.0f} minutes left")


def finished(scale: Scale, folder: Path, wanted: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """What was measured of each system and seed."""
    for cell in wanted:
        if found := cells.find(cell, scale, folder):
            yield from by_system(found)


def by_system(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A run that measures several systems, as one of each."""
    systems = found.get("systems")
    if systems is None:
        yield found
        return
    seconds = {name: each / len(systems) for name, each in found["seconds"].items()}
    yield from ({**found, "system": name, **values, "seconds": seconds} for name, values in systems.items())
