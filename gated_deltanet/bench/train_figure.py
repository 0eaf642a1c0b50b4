"""Fig. 3 for this machine, with the paper's beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gated_deltanet.models.presets import SIZES
from gated_deltanet.quantity import show_size

from .paper import FIG_3, SHAPES

# The paper's colours and marks; its name in Fig. 3, or ours.
STYLES = {
    "transformer": ("blue", "o", "Transformer++"),
    "deltanet": ("plum", "s", "DeltaNet"),
    "gdn": ("#5c7232", "^", "Gated DeltaNet"),
    "mamba": ("orange", "D", "Mamba1"),
    "mamba2": ("red", "p", "Mamba2"),
    "gdn-h1": ("#76b900", "o", "Gated DeltaNet-H1"),
    "samba": ("gray", "o", "Samba"),
    "gdn-h2": ("lime", "o", "Gated DeltaNet-H2"),
    "retnet": ("teal", "v", "RetNet"),
    "hgrn2": ("saddlebrown", "X", "HGRN2"),
}


def draw(document: dict[str, Any], file: Path) -> None:
    """A PNG of the document of `gdn bench train`."""
    rows = [row for row in document["rows"] if "left_out" not in row]
    shapes = list(dict.fromkeys((row["length"], row["batch"]) for row in rows))
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    here, paper = figure.subplots(1, 2)
    for preset in dict.fromkeys(row["preset"] for row in rows):
        speed = {
            (row["length"], row["batch"]): row["tokens_per_second"] / 1e3 for row in rows if row["preset"] == preset
        }
        plot(here, preset, [speed.get(shape) for shape in shapes])
    for architecture, speeds in FIG_3.items():
        plot(paper, architecture, speeds)
    finish(here, f"{document['machine']['cpu']['model']}, {rows[0]['dtype']}, {sizes(rows)}", shapes)
    finish(paper, "One H100, 1.3B (the paper's Fig. 3)", SHAPES)
    handles = {str(line.get_label()): line for axis in (here, paper) for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    figure.savefig(file, format="png", dpi=120)


def plot(axis: Axes, preset: str, speeds: Sequence[float | None]) -> None:
    colour, mark, label = STYLES.get(architecture_of(preset), (None, ".", preset))
    axis.plot(
        range(len(speeds)), [x or float("nan") for x in speeds], color=colour, marker=mark, label=label, linewidth=2
    )


def architecture_of(preset: str) -> str:
    name, _, size = preset.rpartition("-")
    return name if size in SIZES else preset


def sizes(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["preset"].rpartition("-")[2] for row in rows))


def finish(axis: Axes, title: str, shapes: Sequence[tuple[int, int]]) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xticks(range(len(shapes)), [f"{show_size(length)}×{batch}" for length, batch in shapes])
    axis.set_xlabel("length × batch")
    axis.set_ylabel("thousand tokens per second")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.4)
