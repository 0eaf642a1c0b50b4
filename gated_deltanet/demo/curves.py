"""The demo's pictures: what was learned, and how fast."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = Mapping[str, Any]
COLOURS = {"gzip −9": "tab:gray", "n-gram": "tab:orange"}


def draw(records: Sequence[Record], bits_per_nat: float, baselines: Mapping[str, float]) -> Figure:
    """records: of the run, as metrics.jsonl holds them. bits_per_nat: from nats a token to bits a byte."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    learned, speed = figure.subplots(1, 2, width_ratios=(3, 2))
    steps = [record for record in records if "loss" in record and "skipped" not in record]
    draw_learning(learned, steps, [r for r in records if "valid_bits_per_byte" in r], bits_per_nat, baselines)
    draw_speed(speed, steps)
    return figure


def draw_learning(
    axis: Axes, steps: Sequence[Record], valid: Sequence[Record], bits_per_nat: float, baselines: Mapping[str, float]
) -> None:
    loss = bits_per_nat * np.array([record["loss"] for record in steps])
    tokens = {record["step"]: record["tokens"] / 1e6 for record in steps}
    axis.plot(list(tokens.values()), loss, color="tab:blue", alpha=0.3, linewidth=0.8)
    axis.plot(list(tokens.values()), smooth(loss), color="tab:blue", label="training")
    seen = [record for record in valid if record["step"] in tokens]
    heights = [record["valid_bits_per_byte"] for record in seen]
    axis.plot([tokens[r["step"]] for r in seen], heights, "o-", color="tab:red", label="validation")
    for name, bits in baselines.items():
        axis.axhline(bits, color=COLOURS.get(name), linestyle="--", label=f"{name}, validation")
    lowest = min([*heights, *smooth(loss), *baselines.values()])
    axis.set(xlabel="million tokens", ylabel="bits per byte", ylim=(0.9 * lowest, 2 * max(baselines.values())))
    axis.set_title("what was learned", loc="left")
    axis.legend(frameon=False)


def draw_speed(axis: Axes, steps: Sequence[Record]) -> None:
    batch = steps[0]["tokens"] / steps[0]["step"]
    seconds = np.array([record["seconds"] for record in steps])
    axis.plot(np.cumsum(seconds), smooth(batch / seconds) / 1e3, color="tab:green")
    axis.set(xlabel="seconds of training", ylabel="thousand tokens per second")
    axis.set_ylim(bottom=0)
    axis.set_title("how fast", loc="left")


def smooth(x: np.ndarray, n: int = 15) -> np.ndarray:
    """The mean of the last n."""
    total = np.cumsum(np.concatenate([[0.0], x]))
    i = np.arange(1, len(x) + 1)
    first = np.maximum(0, i - n)
    return (total[i] - total[first]) / (i - first)
