"""The figures of the suites: Fig. 2 with this model in it, and a map of which needles it finds."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gated_deltanet.files import write
from gated_deltanet.paper import FIG_2, LENGTHS
from gated_deltanet.quantity import show_size


def draw_extrapolation(document: dict[str, Any], name: str, file: Path) -> None:
    """A PNG. The paper's curves have an axis of their own, at the right: its models are larger."""
    corpora = document["corpora"]
    rows = (len(corpora) + 2) // 3
    figure = Figure(figsize=(14, 3.6 * rows + 1), layout="constrained")
    handles = {}
    for axis, (corpus, found) in zip(figure.subplots(rows, 3, squeeze=False).flat, corpora.items(), strict=False):
        paper = axis.twinx()
        for model, values in FIG_2[corpus].items():
            (handles[f"{model} 1.3B (paper, right)"],) = paper.plot(LENGTHS, values, linewidth=1, marker=".", alpha=0.6)
        points = found["points"]
        x, y = ([point[key] for point in points] for key in ("length", "perplexity"))
        errors = [point["stderr"] or 0 for point in points]
        handles[f"{name} (left)"] = axis.errorbar(x, y, errors, color="black", marker="o", linewidth=2, capsize=3)
        axis.set_title(corpus if found["own"] else f"{corpus} (another text stands in)", fontsize=10)
        axis.set_xscale("log", base=2)
        ticks = sorted({*x[::2], 4096, 8192, 20480})
        axis.set_xticks(ticks, [show_size(tick) for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("position (tokens)", fontsize=9)
        axis.set_ylabel("perplexity", fontsize=9)
        axis.grid(alpha=0.4)
    for axis in figure.axes[len(corpora) : rows * 3]:
        axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=110))


def draw_needle(document: dict[str, Any], name: str, file: Path) -> None:
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
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=110))
