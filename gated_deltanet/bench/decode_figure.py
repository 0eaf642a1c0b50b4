"""Prefill, decoding and memory against the context, as a picture."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gated_deltanet.quantity import show_size

from .train_figure import STYLES, architecture_of, sizes

PANELS = {
    "prefill_tokens_per_second": ("reading: thousand tokens per second", 1e3),
    "decode_ms": ("writing: milliseconds per token", 1),
    "session_bytes": ("what is remembered: MiB", 2**20),
}


def draw(document: dict[str, Any], file: Path) -> None:
    """A PNG of the document of `gdn bench decode`."""
    rows, figure = document["rows"], Figure(figsize=(14, 5), layout="constrained")
    contexts = sorted({row["context"] for row in rows})
    for axis, (name, (title, unit)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for preset in dict.fromkeys(row["preset"] for row in rows):
            colour, mark, label = STYLES.get(architecture_of(preset), (None, ".", preset))
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
    figure.savefig(file, format="png", dpi=120)
