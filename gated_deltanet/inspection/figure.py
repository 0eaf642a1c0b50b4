"""The heat maps and curves of `gdn inspect` as a picture."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

TITLES = {"alpha": "α: decay", "beta": "β: writing strength", "memory": "m: memory length (tokens)"}
CURVES = {"norm": "‖S‖, a line for each layer", "rank": "effective rank of S"}
COLOURS = colormaps["plasma"]


def draw(document: dict[str, Any], file: Path | BinaryIO) -> None:
    """Of `inspect`: surprise, a map for each gate there is, and the state's norm and rank.

    The kind of picture is what the name of the file says; PNG where it has none.
    """
    layers = document["layers"]
    maps = [name for name in TITLES if any(layer[name] for layer in layers)]
    curves = [name for name in CURVES if any(layer[name] for layer in layers)]
    heights = [1.2, *(2.6 for _ in maps), *(1.8 for _ in curves)]
    figure = Figure(figsize=(12, sum(heights) + 0.9), layout="constrained")
    axes = figure.subplots(len(heights), squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})[:, 0]
    figure.suptitle(title_of(document), fontsize=11, parse_math=False)
    draw_surprise(axes[0], document["surprise"])
    for axis, name in zip(axes[1:], maps, strict=False):
        draw_map(axis, name, layers)
    for axis, name in zip(axes[1 + len(maps) :], curves, strict=True):
        draw_curves(axis, name, layers, document["state_at"])
    axes[-1].set_xlabel("token")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(file, format=file.suffix[1:].lower() if isinstance(file, Path) else "png", dpi=120)


def title_of(document: dict[str, Any]) -> str:
    read, all_tokens = len(document["tokens"]), document["n_tokens"]
    tokens = f"tokens: {read:,}" if read == all_tokens else f"tokens: the first {read:,} of {all_tokens:,}"
    return f"{document['checkpoint']}: {document['parameters']:,} parameters, {tokens}"


def draw_surprise(axis: Axes, surprise: list[float | None]) -> None:
    heights = [x or 0 for x in surprise]
    axis.bar(range(len(heights)), heights, width=1, color="tab:red")
    axis.set_title("surprise, −log p (nats)", loc="left", fontsize=10)


def draw_map(axis: Axes, name: str, layers: list[dict[str, Any]]) -> None:
    """A row for each head; of a layer without this gate one empty row."""
    length = max(len(layer[name][0]) for layer in layers if layer[name])
    blocks = [np.asarray(layer[name] or np.full((1, length), np.nan)) for layer in layers]
    x = np.concatenate(blocks)
    limits = {"vmin": np.nanmin(x), "vmax": np.nanmax(x)}
    norm = LogNorm(**limits) if name == "memory" and limits["vmax"] > limits["vmin"] else Normalize(**limits)
    image = axis.imshow(x, aspect="auto", interpolation="nearest", cmap="viridis", norm=norm)
    axis.set_facecolor("0.9")
    bar = axis.figure.colorbar(image, ax=axis, pad=0.01, fraction=0.03, format="%g")
    if isinstance(norm, LogNorm):
        bar.minorformatter = LogFormatter()  # 6, not 6 × 10⁰
    ends = np.cumsum([len(block) for block in blocks])
    axis.hlines(ends[:-1] - 0.5, -0.5, length - 0.5, colors="white", linewidth=0.8)
    every = -(-len(layers) // 16)
    middles = [end - (len(block) + 1) / 2 for end, block in zip(ends, blocks, strict=True)]
    labels = [f"{i} {layer['mixer']}{'' if layer[name] else ' (none)'}" for i, layer in enumerate(layers)]
    axis.set_yticks(middles[::every], labels[::every], fontsize=8)
    axis.set_title(TITLES[name], loc="left", fontsize=10)


def draw_curves(axis: Axes, name: str, layers: list[dict[str, Any]], at: list[int]) -> None:
    """The mean of each layer's heads."""
    for i, layer in enumerate(layers):
        if layer[name]:
            values = np.asarray(layer[name], dtype=float).mean(0)
            colour = COLOURS(i / max(1, len(layers) - 1))
            axis.plot(at, values, color=colour, label=str(i), marker="" if len(at) > 1 else "o")
    axis.set_ylim(bottom=0)
    axis.set_title(CURVES[name], loc="left", fontsize=10)
    columns = -(-len(layers) // 8)
    axis.legend(title="layer", loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, title_fontsize=8, ncols=columns)
