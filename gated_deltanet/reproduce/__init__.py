"""The paper's claims put to a test that a laptop can run.

    from gated_deltanet.reproduce import reproduce

    reproduce("table3", data_dir="texts", out="results/reproduce", jobs=2)

The files in the order to read them: verdicts, numbers, claims; scales, systems; cells, with what is run: text (corpus,
measures), taught (needles, passages), tasks, speed; experiment, pilot; page, figures, others.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gated_deltanet.files import as_json, write_text

from . import experiment
from .claims import as_cells, judge_all
from .page import FIGURE, NUMBERS, asked, measured, named, page, target_page
from .scales import LAPTOP, SCALES, Scale

CELLS, VERDICTS, PAGE = "cells", "verdicts.json", "README.md"

__all__ = ["CELLS", "LAPTOP", "PAGE", "SCALES", "VERDICTS", "Scale", "reproduce"]


def reproduce(
    target: str = "all",
    *,
    data_dir: str | Path | None = None,
    out: str | Path = "results/reproduce",
    work: str | Path = "runs/reproduce",
    jobs: int = 1,
    scale: Scale = LAPTOP,
    tell: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Run what is missing of a target and judge all claims by what there is; out gets cells, verdicts and pages.

    target: one of `experiment.TARGETS`, or "all". data_dir: the folder of texts and data sets; None: nothing is run.
    work: for texts and models that are not kept. jobs: runs side by side, one thread each. scale: one of SCALES. tell:
    of each run done.
    """
    out = Path(out)
    experiment.cells_of(target, scale)  # or the target is unknown
    if data_dir is not None:
        experiment.run(target, scale, Path(data_dir), out / CELLS, work=Path(work), jobs=jobs, tell=tell)
    found = list(experiment.finished(scale, out / CELLS, experiment.cells_of("all", scale)))
    judged = judge_all(as_cells(found))
    if found:
        missing = len(experiment.left("all", scale, out / CELLS))
        write_pages(out, found, judged, missing)
    return judged


def write_pages(
    out: Path, found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]], missing: int
) -> None:
    from .figures import draw

    write_text(out / VERDICTS, as_json(judged) + "\n")
    write_text(out / PAGE, page(found, judged, missing))
    for target in experiment.TARGETS:
        own = [cell for cell in found if cell["system"] in named(target)]
        if own:
            (out / target).mkdir(exist_ok=True)
            write_text(out / target / PAGE, target_page(target, found, judged))
            write_text(out / target / NUMBERS, as_json(measured(target, own)) + "\n")
            draw(target, own, asked(target), out / target / FIGURE)
