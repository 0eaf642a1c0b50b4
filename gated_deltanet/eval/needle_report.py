"""Table 2 with this model in it, and a map of depth and length."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gated_deltanet.quantity import show_size

from .paper import NEEDLE_LENGTHS, TABLE_2


def table(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """The paper's layout: a column a task and length."""
    cells = document["cells"]
    columns = [f"{cell['task']} {show_size(cell['length'])}" for cell in cells]
    errors = ["–" if cell["stderr"] is None else f"{cell['stderr']:.1f}" for cell in cells]
    paper = [[f"{model} 1.3B (paper)", *(shown(model, cell) for cell in cells)] for model in TABLE_2]
    ours = [f"**{name}**", *(f"{cell['accuracy']:.1f}" for cell in cells)]
    rows = ["rows", *(str(cell["rows"]) for cell in cells)]
    return (
        "Single needle in a haystack (table 2)",
        ["model", *columns],
        [ours, ["± standard error", *errors], rows, *paper],
    )


def shown(model: str, cell: dict[str, Any]) -> str:
    """The paper's number, if it has one."""
    values = dict(zip(NEEDLE_LENGTHS, TABLE_2[model].get(cell["task"], ()), strict=False))
    return str(values.get(cell["length"], "–"))


def short(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """For a terminal: one line a column."""
    title, columns, cells = table(document, name)
    lines = [list(line) for line in zip(columns[1:], *(row[1:] for row in cells), strict=True)]
    return f"{title}; the paper's are of 1.3B", ["", name, "±", "rows", *TABLE_2], lines


def notes(document: dict[str, Any]) -> list[str]:
    lengths = (f"{task}: {show_size(n) if n else 'none'}" for task, n in document["effective_length"].items())
    return [
        *(f"Left out: {task}: {reason}." for task, reason in document["left_out"].items()),
        f"Effective length (85 % right up to there): {', '.join(lengths)}.",
        "Haystacks are sized to the token, so the questions are not RULER's own.",
    ]


def draw(document: dict[str, Any], name: str, file: Path) -> None:
    """A PNG: percent right by depth and length, one panel a task."""
    tasks = list(dict.fromkeys(cell["task"] for cell in document["cells"]))
    figure = Figure(figsize=(4.2 * len(tasks) + 1, 4.2), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False).flat, tasks, strict=True):
        cells = [cell for cell in document["cells"] if cell["task"] == task]
        depths = sorted({depth for cell in cells for depth in cell["depths"]})
        values = [[cell["depths"].get(depth, float("nan")) for cell in cells] for depth in depths]
        axis.imshow(values, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
        axis.set_xticks(range(len(cells)), [show_size(cell["length"]) for cell in cells])
        axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
        axis.set_title(task, fontsize=10)
        axis.set_xlabel("length (tokens)")
        axis.set_ylabel("depth of the needle")
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "black" if 15 < value < 90 else "white"
                axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    figure.suptitle(f"{name}: percent right", fontsize=11)
    figure.savefig(file, format="png", dpi=110)
