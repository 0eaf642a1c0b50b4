"""Pictures of the benchmarks of models: Fig. 3 for this machine, and speed and memory against the context."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gated_deltanet.files import write
from gated_deltanet.layers import MIXERS
from gated_deltanet.models.presets import SIZES
from gated_deltanet.paper import FIG_3, FIG_3_SHAPES
from gated_deltanet.quantity import show_size

HYBRIDS = {  # the paper's colours, marks and names; those of one mixer only are the mixer's
    "gdn-h1": ("#76b900", "o", "Gated DeltaNet-H1"),
    "samba": ("gray", "o", "Samba"),
    "gdn-h2": ("lime", "o", "Gated DeltaNet-H2"),
}
PANELS = {
    "prefill_tokens_per_second": ("reading: thousand tokens per second", 1e3),
    "decode_ms": ("writing: milliseconds per token", 1),
    "session_bytes": ("what is remembered: MiB", 2**20),
}


def draw_train(document: dict[str, Any], file: Path) -> None:
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
    finish(paper, "One H100, 1.3B (the paper's Fig. 3)", FIG_3_SHAPES)
    handles = {str(line.get_label()): line for axis in (here, paper) for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=120))


def plot(axis: Axes, preset: str, speeds: Sequence[float | None]) -> None:
    colour, mark, label = style_of(preset)
    axis.plot(
        range(len(speeds)), [x or float("nan") for x in speeds], color=colour, marker=mark, label=label, linewidth=2
    )


def draw_decode(document: dict[str, Any], file: Path) -> None:
    """A PNG of the document of `gdn bench decode`."""
    rows, figure = document["rows"], Figure(figsize=(14, 5), layout="constrained")
    contexts = sorted({row["context"] for row in rows})
    for axis, (name, (title, unit)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for preset in dict.fromkeys(row["preset"] for row in rows):
            colour, mark, label = style_of(preset)
            found = [(row["context"], row[name] / unit) for row in rows if row["preset"] == preset]
            axis.plot(*zip(*found, strict=True), color=colour, marker=mark, label=label, linewidth=2)
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(contexts, [show_size(context) for context in contexts])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("context (tokens)")
        if name == "session_bytes":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.4)
    figure.suptitle(f"{document['machine']['cpu']['model']}, {rows[0]['dtype']}, {sizes(rows)}", fontsize=11)
    handles = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=120))


def draw_weights(document: dict[str, Any], file: Path) -> None:
    """A PNG of the document of `gdn bench weights`: tokens per second of each work, by the weights' format."""
    rows, figure = document["rows"], Figure(figsize=(14, 7), layout="constrained")
    work, who = (list(dict.fromkeys(row[name] for row in rows)) for name in ("work", "who"))
    axes = figure.subplots(2, -(-len(work) // 2), squeeze=False).flatten()
    for axis, title in zip(axes, work, strict=False):
        speed = {row["who"]: row["tokens_per_second"] for row in rows if row["work"] == title}
        floors = {
            row["who"]: row["tokens_per_second"] / row["share_of_memory_floor"]
            for row in rows
            if row["work"] == title and row["share_of_memory_floor"] and row["who"] not in ("dense",)
        }
        axis.barh(list(speed), list(speed.values()), color="#5c7232")
        axis.plot(list(floors.values()), list(floors), "|", color="black", markersize=14, label="memory allows")
        axis.set_title(f"{title}: tokens per second", fontsize=10)
        axis.invert_yaxis()
        axis.grid(alpha=0.4, axis="x")
    for axis in axes[len(work) :]:
        axis.set_axis_off()
    read = document["read_bytes_per_second"] / 1e9
    about = (
        f"{document['machine']['cpu']['model']}, memory {read:.1f} GB/s (marks: what that allows), {len(who)} in turns"
    )
    figure.suptitle(about, fontsize=11)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=120))


def style_of(preset: str) -> tuple[str | None, str, str]:
    """Colour, mark and name of a preset, or an architecture, in a picture."""
    name, _, size = preset.rpartition("-")
    styles = {m.about.name: (m.about.colour, m.about.mark, m.about.title) for m in MIXERS.values()} | HYBRIDS
    return styles.get(name if size in SIZES else preset, (None, ".", preset))


def sizes(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["preset"].rpartition("-")[2] for row in rows))


def finish(axis: Axes, title: str, shapes: Sequence[tuple[int, int]]) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xticks(range(len(shapes)), [f"{show_size(length)}×{batch}" for length, batch in shapes])
    axis.set_xlabel("length × batch")
    axis.set_ylabel("thousand tokens per second")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.4)
