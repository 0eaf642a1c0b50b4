"""Fig. 2 with this model in it."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gated_deltanet.quantity import show_size

from .paper import FIG_2, LENGTHS


def draw(document: dict[str, Any], name: str, file: Path) -> None:
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
    figure.savefig(file, format="png", dpi=110)
