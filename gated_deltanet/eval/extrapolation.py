"""Fig. 2: perplexity by position, beyond the length a model was trained with; the state is carried all the way."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gated_deltanet.quantity import show_size

from .paper import FIG_2, LENGTHS


def by_bucket(loss: Tensor, ends: Sequence[int]) -> list[tuple[float, int]]:
    """The sum and the number of the losses before each end and after the one before it."""
    starts = [0, *ends[:-1]]
    parts = [loss[start:end] for start, end in zip(starts, ends, strict=True)]
    return [(float(part.sum()), len(part)) for part in parts]


def curve(documents: Sequence[Sequence[tuple[float, int]]], ends: Sequence[int]) -> list[dict[str, Any]]:
    """The perplexity of each bucket that some document reaches. documents: of each what `by_bucket` returned."""
    points = []
    for end, parts in zip(ends, zip(*documents, strict=True), strict=True):
        reached = [(total, n) for total, n in parts if n]
        if reached:
            points.append({"length": end, **perplexity(reached)})
    return points


def perplexity(parts: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """With its standard error: documents are drawn, not tokens."""
    tokens, n = sum(count for _, count in parts), len(parts)
    mean = sum(total for total, _ in parts) / tokens
    squares = sum((total - mean * count) ** 2 for total, count in parts)
    error = math.sqrt(squares * n / (n - 1)) / tokens if n > 1 else None
    value = math.exp(mean) if mean < 700 else math.inf
    return {
        "perplexity": value,
        "stderr": None if error is None else value * error,
        "tokens": tokens,
        "documents": n,
    }


def table(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """Ours, and below it the paper's, for each corpus."""
    ends = document["ends"]
    cells = []
    for corpus, found in document["corpora"].items():
        ours = {point["length"]: point for point in found["points"]}
        shown = [f"{ours[end]['perplexity']:.2f}" if end in ours else "–" for end in ends]
        cells.append([corpus, f"**{name}**", *shown])
        cells.append(["", "documents", *(str(ours[end]["documents"]) if end in ours else "–" for end in ends)])
        for model, values in FIG_2[corpus].items():
            paper = dict(zip(LENGTHS, values, strict=True))
            cells.append(["", f"{model} 1.3B (paper)", *(str(paper.get(end, "")) for end in ends)])
    return "Perplexity by position (Fig. 2)", ["corpus", "model", *map(show_size, ends)], cells


def short(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """For a terminal: our perplexities, one line a length."""
    curves = [{p["length"]: f"{p['perplexity']:.2f}" for p in x["points"]} for x in document["corpora"].values()]
    lines = [[show_size(end), *(curve.get(end, "–") for curve in curves)] for end in document["ends"]]
    return f"Perplexity by position (Fig. 2): {name}", ["up to", *document["corpora"]], lines


def notes(document: dict[str, Any]) -> list[str]:
    others = [name for name, found in document["corpora"].items() if not found["own"]]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *(f"Left out: up to {show_size(end)}: {reason}." for end, reason in document["refused"].items()),
        *([f"Other texts stand in for the paper's: {', '.join(others)}."] if others else []),
        "A length stands for the positions up to it and after the one before.",
        "Perplexities of models with other tokenizers do not compare; how they change with the length does.",
    ]
