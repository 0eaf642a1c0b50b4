"""Table 4: recall of what a text said, by completing it."""

from collections.abc import Callable
from typing import Any

from . import columns
from .attempts import attempts
from .columns import Column
from .paper import TABLE_4
from .recall_sets import RECALL, Recall

ASKED = "Their questions are asked as they are, with “The answer is” after them; the paper's are begun sentences (JRT)."
SHOWN = "rows_with_the_answer_in_the_prompt"
TITLE = "Real-world recall, inputs cut to 2K tokens (table 4)"
COLUMNS = (*(Column(each.title, (name,)) for name, each in RECALL.items()), Column("Avg", tuple(RECALL)))


def run(evaluate: Callable[[str, Recall], dict[str, Any]]) -> dict[str, Any]:
    """Every set that can be had, one after the other; why others cannot. evaluate: one set."""
    sets, left_out = attempts(RECALL, lambda name: evaluate(name, RECALL[name]))
    return {"sets": sets, "left_out": left_out, "row": columns.row(COLUMNS, sets)}


def table(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    return columns.table(TITLE, COLUMNS, document, name, TABLE_4)


def short(document: dict[str, Any], name: str) -> tuple[str, list[str], list[list[str]]]:
    return columns.short(TITLE, COLUMNS, document, name, TABLE_4)


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    sets = document["sets"]
    others = [f"{name} ({found['differs']})" for name, found in sets.items() if found["differs"]]
    lost = [f"{name} {x['rows'] - x[SHOWN]} of {x['rows']}" for name, x in sets.items() if x[SHOWN] < x["rows"]]
    some = [f"{name} ({found['rows']} of {found['rows_held']})" for name, found in sets.items() if is_part(found)]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *([f"Not the paper's own data: {', '.join(others)}.", ASKED] if others else []),
        *([f"The first rows only: {', '.join(some)}."] if some else []),
        *([f"No answer is in the prompt, by what the set asks or by the cut: {', '.join(lost)}."] if lost else []),
        *(["Avg is of all six sets, and not all are here."] if document["row"]["Avg"] is None else []),
        f"Percent of completions that hold an answer, in any case; prompt and answer take {document['length']} tokens.",
        "Of longer contexts what is around the answer is kept; SWDE, FDA: key or value; TriviaQA, DROP: the beginning.",
    ]


def is_part(found: dict[str, Any]) -> bool:
    return found["rows"] < found["rows_held"]
