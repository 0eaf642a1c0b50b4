"""Before anything is judged, on seeds that never are: learning rates, how far seeds differ, what is too easy or hard.

Each system learns at three rates for a quarter of the tokens; where the best lies at an end, the next rate is tried,
too. Systems that are taught to recall are tuned in the same way, with all of their steps. What it finds is written
into `scales.LAPTOP` and `cells.taught.LESSONS` by hand, and kept in results/reproduce/pilot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gated_deltanet.files import as_json, write_text

from . import cells, systems
from .cells.taught import LESSONS, TaughtCell
from .cells.text import TextCell
from .numbers import BEYOND, GAIN, KEPT, LONG_GAIN, SEEN, VALIDATION, needles_found, needles_loss, validation
from .scales import LAPTOP, Scale
from .verdicts import LOOKS, interval

SEEDS = (100, 101, 102, 103)
RATES = (2e-3, 4e-3, 8e-3)
SHARE = 4  # of the tokens, a quarter
CLOSE = ("gdn", "mamba2", "deltanet")  # of which the spread over seeds is measured
MEASURED = (VALIDATION, SEEN, BEYOND, KEPT)
ASKED = {  # of systems that are taught to recall; the first numbers choose the rate
    "needles": tuple(of(f"S-NIAH-{i}") for of in (needles_loss, needles_found) for i in (1, 2, 3)),
    "recall": (GAIN, LONG_GAIN),
}
CHOOSING = {"needles": 3, "recall": 1}  # so many of them
FIRST = {"validation": VALIDATION, "needles": ASKED["needles"][2], "gain": GAIN}  # of what was measured
FILE = "pilot.json"


class Place(NamedTuple):
    scale: Scale
    data_dir: Path
    work: Path
    out: Path


def pilot(
    data_dir: str | Path,
    *,
    out: str | Path = "results/reproduce/pilot",
    work: str | Path = "runs/reproduce-pilot",
    jobs: int = 1,
    scale: Scale = LAPTOP,
    names: Sequence[str] = systems.TEXT,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """rates: the best of each system; losses: by system and rate; spread, whole: see the functions of these names.

    What is done is not done again. Arguments as of `reproduce`. names: of the systems.
    """
    place = Place(scale, Path(data_dir), Path(work), Path(out))
    losses = tune(names, place, jobs, tell)
    best = {name: best_of(found) for name, found in losses.items()}
    told: dict[str, Any] = {
        "rates": best,
        "losses": {name: {f"{rate:g}": loss for rate, loss in found.items()} for name, found in losses.items()},
        "spread": spread([name for name in CLOSE if name in names], best, place, jobs, tell),
        "whole": whole(min(names, key=lambda name: min(losses[name].values())), best, place, jobs, tell),
    }
    for lesson, each in LESSONS.items():
        told[lesson] = tune_taught(lesson, [name for name in each.rates if name in names], place, jobs, tell)
    write_text(Path(out) / FILE, as_json(told) + "\n")
    return told


def tune(names: Sequence[str], place: Place, jobs: int, tell: Callable[[str], None]) -> dict[str, dict[float, float]]:
    """The loss of each system at each rate, tried until the best lies between two others."""
    losses: dict[str, dict[float, float]] = {name: {} for name in names}
    while todo := [tried(name, SEEDS[0], rate) for name in names for rate in wanted(losses[name])]:
        for cell, found in run_all(todo, place, jobs, tell):
            losses[cell.model][cell.rate] = validation(found["measures"])
    return losses


def tried(name: str, seed: int, rate: float) -> TextCell:
    return TextCell(name, seed, measured=False, share=SHARE, rate=rate)


def tune_taught(
    lesson: str, names: Sequence[str], place: Place, jobs: int, tell: Callable[[str], None]
) -> dict[str, dict[str, dict[str, float]]]:
    """Of each system at each rate all that is asked after the lesson."""
    told: dict[str, dict[float, dict[str, float]]] = {name: {} for name in names}

    def losses(name: str) -> dict[float, float]:
        by = ASKED[lesson][: CHOOSING[lesson]]
        return {rate: -sum(each.better * found[each.title] for each in by) for rate, found in told[name].items()}

    while todo := [TaughtCell(lesson, name, SEEDS[0], rate) for name in names for rate in wanted(losses(name))]:
        for cell, found in run_all(todo, place, jobs, tell):
            told[cell.model][cell.rate] = {each.title: each.of(found["measures"]) for each in ASKED[lesson]}
    return {name: {f"{rate:g}": each for rate, each in found.items()} for name, found in told.items()}


def best_of(losses: Mapping[float, float]) -> float:
    return min(losses, key=lambda rate: losses[rate])


def wanted(tried: Mapping[float, float]) -> Sequence[float]:
    """The rates to try next."""
    if not tried:
        return RATES
    best = best_of(tried)
    return [best / 2] if best == min(tried) else [best * 2] if best == max(tried) else []


def spread(
    names: Sequence[str], best: Mapping[str, float], place: Place, jobs: int, tell: Callable[[str], None]
) -> dict[str, float]:
    """Of each two systems the smallest difference of their losses that as many seeds as claims have would tell."""
    todo = [tried(name, seed, best[name]) for seed in SEEDS for name in names]
    losses = {(cell.model, cell.seed): validation(m["measures"]) for cell, m in run_all(todo, place, jobs, tell)}
    told = {}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            _, half = interval([losses[a, seed] - losses[b, seed] for seed in SEEDS])
            told[f"{a} − {b}"] = half * (len(SEEDS) / LOOKS[-1]) ** 0.5
    return told


def whole(
    name: str, best: Mapping[str, float], place: Place, jobs: int, tell: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """What cells will measure, of the best system: a task that is too hard for it is of no use."""
    tuned = replace(place.scale, rates=tuple(best.items()))
    found = run_all([TextCell(name, SEEDS[0])], place._replace(scale=tuned), jobs, tell)
    return {cell.system: {each.title: each.of(m["measures"]) for each in MEASURED} for cell, m in found}


def run_all(
    todo: Sequence[Any], place: Place, jobs: int, tell: Callable[[str], None]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each with what was measured of it; what is there is not run again."""
    scale, data_dir, work, out = place
    known = {cell: found for cell in todo if (found := cells.find(cell, scale, out))}
    missing = [cell for cell in todo if cell not in known]
    for cell, found in chain(known.items(), cells.run_all(missing, scale, data_dir, work, out, jobs)):
        tell(f"{cell.system} {cell.seed}: {told(found['measures'])}")
        yield cell, found


def told(m: Mapping[str, Any]) -> str:
    """The number that is looked at first."""
    number = next(each for name, each in FIRST.items() if name in m)
    return f"{number.of(m):.4f}"
