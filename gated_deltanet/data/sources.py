"""Where documents come from.

A source is one or several, in a tuple or separated by commas, of
    stdlib                        the standard library of the running interpreter
    a file, a folder or a glob    of .txt, .md, .py, .jsonl, each also with .gz, and .parquet
    hf:dataset[:config[:split]]   of the Hugging Face hub, streamed
"""

import glob
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from . import formats
from .chat import ChatTemplate
from .formats import Document, Found, Skipped

NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


class Part(NamedTuple):
    """A file, or a stream."""

    name: str
    n_bytes: int | None
    """None of a stream."""
    read: Callable[[], Found]


def documents(
    source: str | Sequence[str],
    *,
    field: str = "text",
    separator: str | None = None,
    skipped: Counter[str] | None = None,
    template: ChatTemplate | None = None,
) -> Iterator[Document]:
    """The documents of a source, in an order that does not change.

    field: of a row of jsonl or parquet, that holds the text. separator: in a text file, between its documents.
    skipped: gets the number of documents skipped for each reason; without it a warning at the end tells them.
    template: that lays out the messages of a row of jsonl (`chat`).
    """
    counts = Counter() if skipped is None else skipped
    found = (part for name in names(source) for part in parts_of(name, field, separator, template))
    for each in chain.from_iterable(part.read() for part in found):
        if isinstance(each, Document):
            yield each
        else:
            counts[each.reason] += 1
    if counts and skipped is None:
        warnings.warn(f"skipped in {source}: {describe(counts)}", stacklevel=2)


def describe(skipped: dict[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(skipped.items()))


def names(source: str | Sequence[str]) -> list[str]:
    """Of the sources in a source."""
    if isinstance(source, str):
        source = (
            [source]
            if source and Path(source).exists()
            else [name.strip() for name in source.split(",") if name.strip()]
        )
    if not source or len(set(source)) < len(source):
        raise ValueError(f"source is {source!r}, expected one or several, each once")
    return list(source)


def parts_of(name: str, field: str, separator: str | None, template: ChatTemplate | None = None) -> list[Part]:
    """The files and streams of one source."""
    if name == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        return [part_of(path, f"stdlib:{path.relative_to(root).as_posix()}", field, None) for path in library(root)]
    if name.startswith("hf:"):
        return [Part(name, None, partial(stream, name, field))]
    return [part_of(path, str(path), field, separator, template) for path in files(name)]


def library(root: Path) -> list[Path]:
    """The modules of a standard library. Left out: what others installed, tests, and what the build generated."""
    found = [path for path in walk(root, without=NOT_LIBRARY) if path.suffix == ".py" and not is_generated(path)]
    if not found:
        raise ValueError(f"no .py files in {root}: this Python has no source of its library; name a folder of texts")
    return found


def is_generated(path: Path) -> bool:
    """By the build of this interpreter: it differs from machine to machine."""
    return path.name.startswith("_sysconfigdata") or path.parent.name.startswith("config-")


def files(name: str) -> list[Path]:
    """By a path or a glob. In a folder and by a glob also those that are not read, so that they are counted."""
    path = Path(name)
    if path.is_file() and not formats.is_readable(path):
        raise ValueError(f"{path} is of a kind that is not read, expected one of {', '.join(formats.READABLE)}")
    found = [path] if path.is_file() else walk(path) if path.is_dir() else sorted(map(Path, globbed(name)))
    if not any(map(formats.is_readable, found)):
        raise FileNotFoundError(f"{name} names no file to read, expected some of {', '.join(formats.READABLE)}")
    return found


def globbed(pattern: str) -> list[str]:
    return [path for path in glob.glob(pattern, recursive=True) if Path(path).is_file()]


def walk(folder: Path, without: Set[str] = frozenset()) -> list[Path]:
    """Files in an order that is the same on every machine. Left out: hidden files and folders, and Python's caches."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in without and not name.startswith((".", "__pycache__"))]
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def part_of(path: Path, name: str, field: str, separator: str | None, template: ChatTemplate | None = None) -> Part:
    if not formats.is_readable(path):
        return Part(name, 0, lambda: iter([Skipped(name, formats.OTHER_KIND)]))
    read = partial(formats.read, path, name, field=field, separator=separator, template=template)
    return Part(name, path.stat().st_size, read)


def stream(name: str, field: str) -> Found:
    try:
        from . import hub
    except ModuleNotFoundError as error:
        raise formats.needs(name, "datasets") from error
    for i, value in enumerate(hub.rows(name.removeprefix("hf:"), field)):
        yield formats.from_row(f"{name}:{i + 1}", value, field, 0)
