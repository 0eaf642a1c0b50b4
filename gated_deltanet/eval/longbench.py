"""Table 5: long contexts, 14 tasks of LongBench."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from . import columns
from .attempts import attempts
from .columns import Column
from .longbench_sets import TASKS
from .paper import TABLE_5

TITLE = "Long contexts, 14 tasks of LongBench (table 5)"


def layout() -> tuple[Column, ...]:
    """The tasks of each group, then its mean; at the end the mean of all."""
    found = []
    for group, names in groupby(TASKS, key=lambda name: TASKS[name].group):
        names = tuple(names)
        found += [*(Column(TASKS[name].title, (name,)) for name in names), Column(group, names)]
    return (*found, Column("Avg", tuple(TASKS)))


COLUMNS = layout()


def run(evaluate: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Every task that can be had, one after the other; why others cannot. evaluate: one task."""
    sets, left_out = attempts(TASKS, evaluate)
    return {"sets": sets, "left_out": left_out, "row": columns.row(COLUMNS, sets)}


def table(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    return columns.table(TITLE, COLUMNS, document, name, TABLE_5)


def short(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    return columns.short(TITLE, COLUMNS, document, name, TABLE_5)


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    sets = document["sets"]
    part = [f"{name} {x['rows']} of {TASKS[name].rows}" for name, x in sets.items() if not x["as_in_the_paper"]]
    cut, rows = (sum(found[of] for found in sets.values()) for of in ("cut", "rows"))
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *([f"Not all rows of LongBench, too few to compare with the paper: {', '.join(part)}."] if part else []),
        *(["Avg is of all 14 tasks, and not all are here."] if document["row"]["Avg"] is None else []),
        "QA: F1 of words; summaries and SSM: ROUGE-L; TRC: classes named; code: similarity of a line. All in percent.",
        f"Prompt and answer take {document['length']} tokens; longer prompts lose their middle ({cut} of {rows}).",
        "The paper gives no length of its inputs; how Transformer++ fails suggests more than the 4K of its training.",
        "The paper prints no means of groups, these are of its numbers; its Avg is as printed (docs/errata.md).",
    ]
