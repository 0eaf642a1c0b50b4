"""Tables in the paper's layout with this model in them: its row, on which rows it was measured, the paper's models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from gated_deltanet.result import Result, Table, attempt_each, check_any

PACKAGES = ("lm_eval", "datasets", "transformers", "torch")
BESIDE = ("Gated DeltaNet", "Transformer++")  # of the paper's models, on a terminal


class Column(NamedTuple):
    """scores: the data sets and their metrics that it is the mean of: one, a group or all. percent: or as they are."""

    title: str
    scores: tuple[tuple[str, str], ...]
    percent: bool = True


class Layout(NamedTuple):
    """columns: the last one is the average. paper: by model its numbers, in the order of the columns of one score, and
    the average. digits: behind the point, as the paper prints them."""

    title: str
    columns: tuple[Column, ...]
    paper: Mapping[str, Sequence[float]]
    digits: int = 1


def measure(layout: Layout, names: Iterable[str], evaluate: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Every data set that is available, one after the other, and why others are not. evaluate: one of them."""
    sets, left_out = attempt_each(names, evaluate)
    check_any(sets, left_out)
    row = {column.title: value(column, sets) for column in layout.columns}
    return {"sets": sets, "left_out": left_out, "row": row}


def result(suite: str, layout: Layout, document: dict[str, Any], name: str, notes: list[str]) -> Result:
    """document: what `measure` returned, and more. name: of the model."""
    return Result(suite, document, table(layout, document, name), short_table(layout, document, name), notes)


def value(column: Column, sets: Mapping[str, Any], of: str = "scores") -> float | None:
    """If all its sets are there. of: "stderr": the standard error, sets being independent."""
    found = [sets.get(name, {}).get(of, {}).get(metric) for name, metric in column.scores]
    if None in found:
        return None
    total = sum(x * x for x in found) ** 0.5 if of == "stderr" else sum(found)
    return (100 if column.percent else 1) * total / len(found)


def table(layout: Layout, document: dict[str, Any], name: str) -> Table:
    """Our row first."""
    columns, sets = layout.columns, document["sets"]
    cells = [
        [f"**{name}**", *(show(value(column, sets), layout.digits) for column in columns)],
        ["± standard error", *(show(value(column, sets, "stderr"), layout.digits) for column in columns)],
        ["rows", *(rows(column, sets) for column in columns)],
        ["as in the paper", *(same(column, sets) for column in columns)],
        *(
            [f"{model} 1.3B (paper)", *(show(printed(column, columns, numbers), layout.digits) for column in columns)]
            for model, numbers in layout.paper.items()
        ),
    ]
    return layout.title, ["model", *(column.title for column in columns)], cells


def short_table(layout: Layout, document: dict[str, Any], name: str) -> Table:
    """For a terminal: one line a column, and of the paper's models two."""
    few = layout._replace(paper={model: layout.paper[model] for model in BESIDE})
    title, heads, cells = table(few, document, name)
    lines = [list(line) for line in zip(heads[1:], *(row[1:] for row in cells), strict=True)]
    return title, ["", name, "±", "rows", "as in the paper", *(row[0] for row in cells[4:])], lines


def printed(column: Column, columns: Sequence[Column], numbers: Sequence[float]) -> float:
    """The paper's, of a row of its table; a group's mean, which it does not print, from its numbers."""
    single = [each.scores[0] for each in columns if len(each.scores) == 1]
    if column == columns[-1]:
        return numbers[-1]
    return sum(numbers[single.index(score)] for score in column.scores) / len(column.scores)


def rows(column: Column, sets: Mapping[str, Any]) -> str:
    held = [sets[name]["rows"] for name, _ in column.scores if name in sets]
    return str(sum(held)) if held else "–"


def same(column: Column, sets: Mapping[str, Any]) -> str:
    """Whether all rows are the paper's own, and all of them."""
    found = [sets[name]["as_in_the_paper"] for name, _ in column.scores if name in sets]
    return "–" if len(found) < len(column.scores) else "yes" if all(found) else "no"


def show(number: float | None, digits: int) -> str:
    if number is None:
        return "–"
    return f"{number:.{digits}f}" if number < 1e5 else f"{number:.2g}"


def versions() -> dict[str, str]:
    """Of the packages that have a part in a score, those that are installed."""
    return {name: version(name) for name in PACKAGES if find_spec(name)}


def mean_score(metric: str, values: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """Of one set: the mean over rows and its standard error, as lm-eval has them."""
    n, mean = len(values), sum(values) / len(values)
    error = (sum((x - mean) ** 2 for x in values) / (n - 1) / n) ** 0.5 if n > 1 else None
    return {"scores": {metric: mean}, "stderr": {metric: error}}
