"""Text, JSON and TOML, with errors that name the file and where they can the line."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .shape import shaped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

DEEPEST = 32  # levels, far more than we write: repr() and json.dumps() give up where a reader may not


def read_text(file: Path) -> str:
    """Newlines as they are."""
    content = file.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{file}, line {line} is not UTF-8: {error.reason}") from error


def read_json(file: Path, kind: Any = dict[str, Any], *, strict: bool = True) -> Any:
    """The document in a file as a type that `shaped` knows. strict: see `parse_json`."""
    value = parse_json(read_text(file), str(file), strict=strict)
    with naming(file):
        return shaped(value, kind)


def read_lines(file: Path, *, strict: bool = True) -> Iterator[tuple[str, Any]]:
    """Of a file with one JSON document a line: where each stands, and the document. Empty lines are passed over.

    So is a last line that was cut short, as a killed process leaves it.
    """
    *lines, rest = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{file}, line {number}"
            yield where, parse_json(line, where, strict=strict)
    try:
        last = parse_json(rest, str(file), strict=strict)
    except ValueError:
        return
    yield f"{file}, line {len(lines) + 1}", last


def parse_json(text: str | bytes, where: str, *, strict: bool = True) -> Any:
    """strict: no NaN and Infinity, which JSON does not have, no name twice, no number beyond 64 bits. Others, and
    Python, write such files."""
    try:
        content = text if isinstance(text, str) else text.decode()
        value = json.loads(content, object_pairs_hook=each_once if strict else None)
        check_depth(value)
        if strict:
            check_values(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON as it should be: {error}") from error
    return value


def read_toml(file: Path) -> dict[str, Any]:
    text = read_text(file)
    try:
        values = tomllib.loads(text)
        check_depth(values)
        check_values(values)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not TOML as it should be: {error}") from error
    return values


@contextmanager
def naming(file: Path | str) -> Iterator[None]:
    """What is wrong with its content is said with the name of the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
    return found


def check_depth(value: Any, levels: int = DEEPEST) -> None:
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"it nests more than {DEEPEST} levels deep")
        for part in inside(value):
            check_depth(part, levels - 1)


def check_values(value: Any) -> None:
    """That what else reads and prints them can: a text can hold half a character, a number be infinite."""
    if isinstance(value, dict | list):
        for part in inside(value):
            check_values(part)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}, expected finite ones")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"it holds a whole number of {value.bit_length()} bits, expected at most 64")


def inside(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    yield from value
    if isinstance(value, dict):
        yield from value.values()
