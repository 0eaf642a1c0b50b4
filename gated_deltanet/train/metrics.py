"""What is measured, step by step: one JSON object a line, and TensorBoard's events where it is installed."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from . import durable

FILE = "metrics.jsonl"
Record: TypeAlias = Mapping[str, Any]
Sink: TypeAlias = Callable[[Record], None]


@contextmanager
def jsonl(file: Path) -> Iterator[Sink]:
    """Each record is in the file when the sink returns. A number that is not finite is written as null."""
    with file.open("a", encoding="utf-8") as stream:

        def write(record: Record) -> None:
            try:
                stream.write(json.dumps({key: finite(value) for key, value in record.items()}) + "\n")
                stream.flush()
            except OSError as error:
                raise OSError(f"{file} could not be written: {error.strerror}") from error

        yield write


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
    records = map(parse, file.read_text(encoding="utf-8").splitlines())
    return [record for record in records if record is not None]


def parse(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def forget_after(file: Path, step: int) -> None:
    """Drop what was measured after a step, which will be done again."""
    kept = [json.dumps(record) + "\n" for record in read(file) if record["step"] <= step]
    durable.write_text(file, "".join(kept))


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
