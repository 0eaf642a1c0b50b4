"""The suite as a picture: one panel a task, accuracy by level."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from gated_deltanet.files import write

ACROSS = 4  # panels: recall and copying above, state tracking below
COLOURS = matplotlib.color_sequences["tab10"]
MARKERS = "osD^vPX"
GREY = "0.45"
APART = 0.04  # levels between the markers of models that are equally good


def draw(document: dict[str, Any], file: Path) -> None:
    """A PNG. A model looks the same in every panel."""
    tasks = list(document["tasks"].values())
    names = list(dict.fromkeys(name for task in tasks for name in task["models"]))
    rows = -(-len(tasks) // ACROSS)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches
    figure = Figure(figsize=(4.4 * ACROSS, 4 * rows), layout=layout)
    panels = list(figure.subplots(rows, ACROSS, squeeze=False).flat)
    for axis, task in zip(panels, tasks, strict=False):
        draw_frame(axis, task)
        draw_models(axis, task, names)
    for axis in panels[len(tasks) :]:
        axis.set_visible(False)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=120))


def draw_frame(axis: Axes, task: dict[str, Any]) -> None:
    """Levels at equal distances, shaded where they are beyond those trained on, and what guessing would reach."""
    levels, last = task["scored"], len(task["scored"]) - 1
    axis.set_title(task["title"], loc="left", fontsize=11, fontweight="bold")
    axis.set_xticks(range(last + 1), [str(level) for level in levels])
    axis.set_xlim(-0.3, last + 0.3)
    axis.set_ylim(0, 112)
    axis.set_yticks(range(0, 101, 25))
    axis.tick_params(labelsize=9)
    axis.set_xlabel(task["level"], fontsize=9)
    axis.set_ylabel("percent right", fontsize=9)
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.axhline(task["chance"], color=GREY, linewidth=1, linestyle=":")
    below = task["chance"] > 10  # where there is room
    text = {"va": "top" if below else "bottom", "fontsize": 8, "color": GREY}
    axis.text(-0.28, task["chance"] + (-1.5 if below else 1), "chance", **text)
    beyond = [i for i, level in enumerate(levels) if level > max(task["trained"])]
    if beyond:
        axis.axvspan(beyond[0] - 0.5, last + 0.3, color="0.955", zorder=0)
        axis.text(last + 0.27, 107, "not trained on", ha="right", va="center", fontsize=8, color=GREY)


def draw_models(axis: Axes, task: dict[str, Any], names: list[str]) -> None:
    models = task["models"]
    for i, (name, result) in enumerate(models.items()):
        aside, number = APART * (i - (len(models) - 1) / 2), names.index(name)
        places = [place + aside for place in range(len(result["points"]))]
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        accuracy = [point["accuracy"] for point in result["points"]]
        axis.plot(places, accuracy, **style, markersize=5, linewidth=1.6, label=name, clip_on=False)
    if models:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, fontsize=8, frameon=False)
