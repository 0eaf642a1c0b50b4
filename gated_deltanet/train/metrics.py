"""What is measured, step by step: one JSON object a line, and TensorBoard's events where it is installed."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from gated_deltanet.files import append, finite, naming, read_lines, shaped, write_text

FILE = "metrics.jsonl"
Record: TypeAlias = Mapping[str, Any]
Sink: TypeAlias = Callable[[Record], None]


class Line(TypedDict):
    """What every record holds, beside other numbers and texts."""

    step: int


@contextmanager
def jsonl(file: Path) -> Iterator[Sink]:
    """Each record is in the file when the sink returns. A number that is not finite is written as null."""
    append(file, "")  # or it cannot be written, which is told before the work
    yield lambda record: append(file, json.dumps(finite(record)) + "\n")


@contextmanager
def tensorboard(folder: Path) -> Iterator[Sink]:
    """Nothing where it is not installed (the extra `track`)."""
    if find_spec("tensorboard") is None:
        yield lambda record: None
        return
    from .tensorboard import events

    with events(folder) as write:
        yield write


def read(file: Path) -> list[dict[str, Any]]:
    """All whole records: a killed process may have left half a line at the end."""
    if not file.exists():
        return []
    return [checked(record, where) for where, record in read_lines(file)]


def checked(record: Any, where: str) -> dict[str, Any]:
    with naming(where):
        shaped(record, Line)
        return shaped(record, dict[str, int | float | str | None])


def forget_after(file: Path, step: int) -> None:
    """Drop what was measured after a step, which will be done again."""
    kept = [json.dumps(record) + "\n" for record in read(file) if record["step"] <= step]
    write_text(file, "".join(kept))
