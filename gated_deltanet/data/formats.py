"""Documents in one file: text, jsonl or parquet, and gzipped ones. What is skipped is yielded too, with the reason."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from .chat import ChatTemplate, Content, Turn, conversation, question_and_answer, text_of

TEXT = (".txt", ".md", ".py")
SUFFIXES = (*TEXT, ".jsonl")
READABLE = (*SUFFIXES, *(f"{suffix}.gz" for suffix in SUFFIXES), ".parquet")

INVALID, EMPTY, MALFORMED, OTHER_KIND = "invalid UTF-8", "empty", "malformed JSON", "file of another kind"


class Document(NamedTuple):
    name: str
    """Of the file and the row in it."""
    text: str
    at: int
    """Bytes of the file read so far."""
    turns: tuple[Turn, ...] = ()
    """Of a conversation: the same text, of which only the answers are learnt."""

    @property
    def content(self) -> Content:
        return self.turns or self.text


class Skipped(NamedTuple):
    name: str
    reason: str


Found: TypeAlias = Iterator[Document | Skipped]


def is_readable(path: Path) -> bool:
    return path.name.endswith(READABLE)


def read(path: Path, name: str, *, field: str, separator: str | None, template: ChatTemplate | None = None) -> Found:
    """The documents in a file. field: of a row. separator: between the documents of a text; None if it is one.

    template: that lays out the messages of a row (`chat`).
    """
    if path.suffix == ".parquet":
        return read_parquet(path, name, field)
    if path.name.removesuffix(".gz").endswith(TEXT):
        return read_text(path, name, separator)
    return read_jsonl(path, name, field, template)


def read_text(path: Path, name: str, separator: str | None) -> Found:
    with path.open("rb") as file:
        content = b"".join(lines(file, path))
    try:
        text = content.decode()
    except UnicodeDecodeError:
        yield Skipped(name, INVALID)
        return
    if separator is None:
        yield document(name, text, len(content))
        return
    for i, each in enumerate(text.split(separator)):
        yield document(f"{name}:{i + 1}", each, len(content))


def read_jsonl(path: Path, name: str, field: str, template: ChatTemplate | None) -> Found:
    with path.open("rb") as file:
        for i, line in enumerate(lines(file, path)):
            yield from_json(f"{name}:{i + 1}", line, field, file.tell(), template)


def lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        yield from io.BufferedReader(gzip.GzipFile(fileobj=file), 2**20) if path.suffix == ".gz" else file
    except (EOFError, zlib.error, OSError) as error:  # of gzip, without the name of the file
        raise ValueError(f"{path} cannot be read: {error}") from error


def from_json(name: str, line: bytes, field: str, at: int, template: ChatTemplate | None = None) -> Document | Skipped:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return Skipped(name, INVALID)
    except (ValueError, RecursionError):
        return Skipped(name, MALFORMED if line.strip() else EMPTY)
    row = row if isinstance(row, dict) else {}
    if isinstance(row.get(field), str):
        return document(name, row[field], at)
    turns = turns_of(row, field, template)
    return Skipped(name, turns) if isinstance(turns, str) else document(name, text_of(turns), at, turns)


def turns_of(row: dict[str, Any], field: str, template: ChatTemplate | None) -> tuple[Turn, ...] | str:
    """Of a row that is a conversation, or why it is none."""
    if isinstance(row.get(field), list):
        return conversation(row[field], template)
    if "messages" in row:
        return conversation(row["messages"], template)
    if "prompt" in row and "answer" in row:
        return question_and_answer(row["prompt"], row["answer"])
    return no_text(field)


def from_row(name: str, value: object, field: str, at: int) -> Document | Skipped:
    return document(name, value, at) if isinstance(value, str) else Skipped(name, no_text(field))


def no_text(field: str) -> str:
    return f"no text in the field {field!r}"


def document(name: str, text: str, at: int, turns: tuple[Turn, ...] = ()) -> Document | Skipped:
    if not text.strip():
        return Skipped(name, EMPTY)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, as JSON can write it
        return Skipped(name, INVALID)
    return Document(name, text, at, turns)


def read_parquet(path: Path, name: str, field: str) -> Found:
    try:
        from . import parquet
    except ModuleNotFoundError as error:
        raise needs(f"reading {path}", "pyarrow") from error
    size = path.stat().st_size
    for i, (value, share) in enumerate(parquet.rows(path, field)):
        row = f"{name}:{i + 1}"
        yield Skipped(row, INVALID) if value is parquet.INVALID else from_row(row, value, field, int(share * size))


def needs(what: str, package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{what} needs {package}: pip install 'gated-deltanet[data]'")
