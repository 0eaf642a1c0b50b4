"""Before anything is judged, on seeds that never are: learning rates, how far seeds differ, what is too easy or hard.

Each system learns at three rates, text for a quarter of the tokens, lessons with all of their steps; where the best
lies at an end, the next rate is tried, too. What it finds is written into `scales.LAPTOP` and `cells.taught.LESSONS`
by hand, and kept in results/reproduce/pilot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.files import as_json, write_text

from . import cells, systems
from .cells.taught import LESSONS, TaughtCell
from .cells.text import TextCell
from .numbers import (
    BEYOND,
    GAIN,
    KEPT,
    LONG_GAIN,
    SEEN,
    VALIDATION,
    Number,
    mean,
    needles_found,
    needles_loss,
    validation,
)
from .scales import LAPTOP, Scale
from .verdicts import LOOKS, interval

SEEDS = (100, 101, 102, 103)
RATES = (2e-3, 4e-3, 8e-3)
SHARE = 4  # of the tokens, a quarter
CLOSE = ("gdn", "mamba2", "deltanet")  # of which the spread over seeds is measured
MEASURED = (VALIDATION, SEEN, BEYOND, KEPT)
NEEDLES = tuple(f"S-NIAH-{i}" for i in (1, 2, 3))
FILE, PAGE = "pilot.json", "README.md"

Tried: TypeAlias = dict[float, dict[str, float]]  # of one system, by rate: what was measured


class Asked(NamedTuple):
    """Of systems that learn text, or a lesson."""

    title: str
    choosing: tuple[Number, ...]  # the rate is best by the sum of these
    others: tuple[Number, ...] = ()


ASKED = {
    "text": Asked("Text", (VALIDATION,)),
    "needles": Asked("Needles", tuple(map(needles_loss, NEEDLES)), tuple(map(needles_found, NEEDLES))),
    "recall": Asked("Recall", (GAIN,), (LONG_GAIN,)),
}


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
    """For each of ASKED, the best rate of each system, and all that was tried; spread, whole: see these functions.

    What is done is not done again. Arguments as of `reproduce`. names: of the systems.
    """
    place = Place(scale, Path(data_dir), Path(work), Path(out))
    told: dict[str, Any] = {}
    for what in ASKED:
        learn = [name for name in names if what == "text" or name in LESSONS[what].rates]
        tried = tune(what, learn, place, jobs, tell)
        told[what] = {"rates": {name: best_of(what, found) for name, found in tried.items()}, "tried": tried}
    rates, losses = told["text"]["rates"], told["text"]["tried"]
    best = min(names, key=lambda name: losses[name][rates[name]][VALIDATION.title])
    told["spread"] = spread([name for name in CLOSE if name in names], rates, place, jobs, tell)
    told["whole"] = whole(best, rates, place, jobs, tell)
    write_text(Path(out) / FILE, as_json(told) + "\n")
    write_text(Path(out) / PAGE, page(told))
    return told


def tune(what: str, names: Sequence[str], place: Place, jobs: int, tell: Callable[[str], None]) -> dict[str, Tried]:
    """What is asked of each system at each rate, tried until the best lies between two others."""
    tried: dict[str, Tried] = {name: {} for name in names}
    numbers = (*ASKED[what].choosing, *ASKED[what].others)
    while todo := [cell_of(what, name, SEEDS[0], rate) for name in names for rate in wanted(what, tried[name])]:
        for cell, found in run_all(todo, place, jobs, tell):
            tried[cell.model][cell.rate] = {each.title: each.of(found["measures"]) for each in numbers}
    return {name: dict(sorted(found.items())) for name, found in tried.items()}


def cell_of(what: str, name: str, seed: int, rate: float) -> TextCell | TaughtCell:
    if what == "text":
        return TextCell(name, seed, measured=False, share=SHARE, rate=rate)
    return TaughtCell(what, name, seed, rate)


def best_of(what: str, tried: Tried) -> float:
    return max(tried, key=lambda rate: sum(each.better * tried[rate][each.title] for each in ASKED[what].choosing))


def wanted(what: str, tried: Tried) -> Sequence[float]:
    """The rates to try next."""
    if not tried:
        return RATES
    best = best_of(what, tried)
    return [best / 2] if best == min(tried) else [best * 2] if best == max(tried) else []


def spread(
    names: Sequence[str], best: Mapping[str, float], place: Place, jobs: int, tell: Callable[[str], None]
) -> dict[str, float]:
    """Of each two systems the smallest difference of their losses that as many seeds as claims have would tell."""
    todo = [cell_of("text", name, seed, best[name]) for seed in SEEDS for name in names]
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
        tell(f"{cell.system} {cell.seed}")
        yield cell, found


def page(told: Mapping[str, Any]) -> str:
    """In Markdown: of each system all rates and what they led to."""
    parts = [
        "# Pilot",
        "",
        "`gdn reproduce pilot --data-dir DATA`, on seeds that are never judged: docs/reproduction.md.",
    ]
    for what, asked in ASKED.items():
        tried, best = told[what]["tried"], told[what]["rates"]
        rates = sorted({rate for found in tried.values() for rate in found})
        titles = [each.title for each in asked.choosing]
        parts += ["", f"## {asked.title}: {'mean of ' if titles[1:] else ''}{', '.join(titles)}", ""]
        parts += [f"| | {' | '.join(f'{rate:g}' for rate in rates)} |", "|---" * (len(rates) + 1) + "|"]
        for name, found in tried.items():
            cells = [shown(asked, found.get(rate), rate == best[name]) for rate in rates]
            parts.append(f"| {name} | {' | '.join(cells)} |")
    parts += ["", f"## Differences of validation loss that {LOOKS[-1]} seeds will tell", ""]
    parts += [f"- {pair}: {half:.4f}" for pair, half in told["spread"].items()]
    parts += ["", "## What a run of text measures", ""]
    for name, found in told["whole"].items():
        parts += [f"- {name}, {title}: {value:.3f}" for title, value in found.items()]
    return "\n".join(parts) + "\n"


def shown(asked: Asked, found: Mapping[str, float] | None, best: bool) -> str:
    if found is None:
        return ""
    value = f"{mean([found[each.title] for each in asked.choosing]):.3f}"
    return f"**{value}**" if best else value
