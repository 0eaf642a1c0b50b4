"""A table of the paper in percent with this model in it: its row, and on what rows it was measured."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

BESIDE = ("Gated DeltaNet", "Transformer++")  # of the paper's models, on a terminal


class Column(NamedTuple):
    """sets: whose scores it is the mean of: one, a group or all."""

    title: str
    sets: tuple[str, ...]


def value(column: Column, sets: Mapping[str, Any], of: str = "scores") -> float | None:
    """In percent, if all its sets are there. of: "stderr": the standard error, sets being independent."""
    found = [next(iter(sets[name][of].values())) for name in column.sets if name in sets]
    if len(found) < len(column.sets) or None in found:
        return None
    total = sum(x * x for x in found) ** 0.5 if of == "stderr" else sum(found)
    return 100 * total / len(found)


def row(columns: Sequence[Column], sets: Mapping[str, Any]) -> dict[str, float | None]:
    return {column.title: value(column, sets) for column in columns}


def printed(column: Column, columns: Sequence[Column], numbers: Sequence[float]) -> float:
    """The paper's, of a row of its table; a group's mean, which it does not print, from its numbers."""
    single = [each.sets[0] for each in columns if len(each.sets) == 1]
    if len(column.sets) == len(single):
        return numbers[-1]
    return sum(numbers[single.index(name)] for name in column.sets) / len(column.sets)


def table(
    title: str, columns: Sequence[Column], document: dict[str, Any], name: str, paper: Mapping[str, Sequence[float]]
) -> tuple[str, list[str], list[list[str]]]:
    """Title, columns, cells; our row first."""
    sets = document["sets"]
    held = [[sets[each]["rows"] for each in column.sets if each in sets] for column in columns]
    cells = [
        [f"**{name}**", *(show(value(column, sets)) for column in columns)],
        ["± standard error", *(show(value(column, sets, "stderr")) for column in columns)],
        ["rows", *(str(sum(rows)) if rows else "–" for rows in held)],
        ["as in the paper", *(same(column, sets) for column in columns)],
        *(
            [f"{model} 1.3B (paper)", *(show(printed(column, columns, numbers)) for column in columns)]
            for model, numbers in paper.items()
        ),
    ]
    return title, ["model", *(column.title for column in columns)], cells


def short(
    title: str, columns: Sequence[Column], document: dict[str, Any], name: str, paper: Mapping[str, Sequence[float]]
) -> tuple[str, list[str], list[list[str]]]:
    """For a terminal: one line a column, and of the paper's models two."""
    _, heads, cells = table(title, columns, document, name, {model: paper[model] for model in BESIDE})
    lines = [list(line) for line in zip(heads[1:], *(cells[1:] for cells in cells), strict=True)]
    return title, ["", name, "±", "rows", "as in the paper", *(cells[0] for cells in cells[4:])], lines


def same(column: Column, sets: Mapping[str, Any]) -> str:
    """Whether all rows are the paper's own, and all of them."""
    found = [sets[name]["as_in_the_paper"] for name in column.sets if name in sets]
    return "–" if len(found) < len(column.sets) else "yes" if all(found) else "no"


def show(number: float | None) -> str:
    return "–" if number is None else f"{number:.1f}"


def summary(metric: str, values: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """The mean over rows and its standard error, as lm-eval has them."""
    n, mean = len(values), sum(values) / len(values)
    error = (sum((x - mean) ** 2 for x in values) / (n - 1) / n) ** 0.5 if n > 1 else None
    return {"scores": {metric: mean}, "stderr": {metric: error}}
