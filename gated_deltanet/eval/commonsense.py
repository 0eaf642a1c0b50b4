"""Table 3: language modelling and zero-shot common-sense reasoning."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .attempts import attempts
from .paper import TABLE_3
from .sets import COMMONSENSE, Set


class Column(NamedTuple):
    title: str  # the paper's
    unit: str
    task: str  # lm-eval's, as `metric` is
    metric: str


COLUMNS = (
    Column("Wiki.", "ppl ↓", "wikitext", "word_perplexity"),
    Column("LMB.", "ppl ↓", "lambada_openai", "perplexity"),
    Column("LMB.", "acc ↑", "lambada_openai", "acc"),
    Column("PIQA", "acc ↑", "piqa", "acc"),
    Column("Hella.", "acc_n ↑", "hellaswag", "acc_norm"),
    Column("Wino.", "acc ↑", "winogrande", "acc"),
    Column("ARC-e", "acc ↑", "arc_easy", "acc"),
    Column("ARC-c", "acc_n ↑", "arc_challenge", "acc_norm"),
    Column("SIQA", "acc ↑", "social_iqa", "acc"),
    Column("BoolQ", "acc ↑", "boolq", "acc"),
)


def run(evaluate: Callable[[str, Set], dict[str, Any]]) -> dict[str, Any]:
    """Every set that can be had, one after the other; why others cannot. evaluate: one task on one set."""
    sets, left_out = attempts(COMMONSENSE, lambda name: evaluate(name, COMMONSENSE[name]))
    return {"sets": sets, "left_out": left_out, "row": row(sets)}


def row(sets: dict[str, Any]) -> list[float | None]:
    """The numbers of `COLUMNS`, accuracies in percent, and the paper's average: of all accuracies, if all are there."""
    values = [number(column, sets) for column in COLUMNS]
    shares = [x for x, column in zip(values, COLUMNS, strict=True) if is_share(column)]
    whole = [x for x in shares if x is not None]
    return [*values, sum(whole) / len(whole) if len(whole) == len(shares) else None]


def is_share(column: Column) -> bool:
    return column.unit.startswith("acc")


def number(column: Column, sets: dict[str, Any], of: str = "scores") -> float | None:
    found = sets.get(column.task, {}).get(of, {}).get(column.metric)
    return found if found is None or not is_share(column) else 100 * found


def table(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """The paper's layout: title, columns, cells; our row first, with the standard errors below it."""
    columns = ["model", *(f"{column.title} {column.unit}" for column in COLUMNS), "Avg."]
    errors = [number(column, document["sets"], "stderr") for column in COLUMNS]
    cells = [
        [f"**{name}**", *map(show, document["row"])],
        ["± standard error", *map(show, errors), ""],
        ["rows", *(str(document["sets"].get(column.task, {}).get("rows", "–")) for column in COLUMNS), ""],
        *([f"{model} 1.3B (paper)", *map(show, values)] for model, values in TABLE_3.items()),
    ]
    return "Language modelling and zero-shot common-sense reasoning (table 3)", columns, cells


def short(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    """For a terminal: one line a column, and of the paper's models two."""
    title, columns, cells = table(document, name)
    chosen = [cells[0], cells[1], cells[2], *(row for row in cells if row[0].startswith(BESIDE))]
    heads = [name, "±", "rows", *(row[0] for row in chosen[3:])]
    lines = [list(line) for line in zip(columns[1:], *(row[1:] for row in chosen), strict=True)]
    return title, ["", *heads], lines


BESIDE = ("Gated DeltaNet 1.3B", "Transformer++ 1.3B")


def show(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 1e5 else f"{value:.2g}"


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    partial = [name for name, found in document["sets"].items() if not found["as_in_the_paper"]]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *([f"Not all rows of the paper's sets: {', '.join(partial)}."] if partial else []),
        *(["Avg. is of all eight accuracies, and not all are here."] if document["row"][-1] is None else []),
    ]
