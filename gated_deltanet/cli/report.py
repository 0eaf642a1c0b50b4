"""What a reporting verb prints: a table for people, or with `--json` one document for programs."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

T = TypeVar("T")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()
) -> None:
    """Cells are printed as `str` gives them: brackets are text, not markup."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    console.print(table)
    for note in notes:
        console.print(Text(note))


def print_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(as_markdown(title, columns, rows))


def as_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = (f"| {' | '.join(map(str, row))} |" for row in (columns, ["---"] * len(columns), *rows))
    return "\n".join([title, "", *lines])


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr that tells how far they are and how long the rest will take."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def print_json(document: dict[str, Any] | list[dict[str, Any]]) -> None:
    print(as_json(document))


def check_out(file: Path) -> None:
    """Before the work, whose result would be lost: that the file can be written."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ValueError(f"--out is {file}, expected a file in a folder that exists")


def write_json(file: Path, document: dict[str, Any]) -> None:
    write_text(file, as_json(document) + "\n")


def write_text(file: Path, text: str) -> None:
    """Whole or not at all: under another name first."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def as_json(document: dict[str, Any] | list[dict[str, Any]]) -> str:
    return json.dumps(finite(document), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """The same document with None, JSON's null, for NaN and ±inf, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
