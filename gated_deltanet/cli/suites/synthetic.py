"""`gdn eval --suite synthetic`: architectures that are trained on small tasks."""

from importlib.util import find_spec
from typing import Any

from gated_deltanet.cli.eval import Eval

from .report import Report, answers, check_any

SEED = 0


def run(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.synthetic import report, suite

    cells = {str(cell): cell for cell in suite.cells(options.checkpoint.split(","))}

    def measure(some: list[str]) -> list[dict[str, Any]]:
        return [suite.measure(cells[name], seed=SEED, steps=options.limit) for name in some]

    measured = answers(options, "training", list(cells), measure, 1, ("synthetic", SEED, options.limit))
    document |= suite.collect(measured, seed=SEED)
    check_any([found for task in document["tasks"].values() for found in task["models"]], document)
    if options.out and find_spec("matplotlib"):
        from gated_deltanet.synthetic.figure import draw

        draw(document, options.out / "synthetic.png")
    return Report(report.table(document), report.short(document), report.notes(document))
