"""Data sets, as files of a folder or of the Hugging Face hub, to checked rows.

Of a folder the documented files are read, or without them others of their shape, and what is not read has a reason.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.data.formats import needs
from gated_deltanet.files import parse_json
from gated_deltanet.result import FAILURES

Row: TypeAlias = dict[str, Any]

ROWS = (".jsonl", ".jsonl.gz", ".parquet")
TEXTS = (".txt", ".txt.gz", ".raw", ".raw.gz")
SPLITS = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


class Files(NamedTuple):
    taken: list[Path]
    left_out: dict[str, str]
    """By the name of a file the reason."""


def find(folder: Path, documented: str, check: Callable[[Path], object], split: str = "", word: str = "") -> Files:
    """documented: a path or pattern in the folder. check: raises if a file is not of the shape. The split's files come
    first. word: that a name must hold, where several sets share a folder."""
    if found := sorted(folder.glob(documented)):
        return Files(found, {})
    others = (folder / documented).parent
    files = [file for file in sorted(others.glob("*")) if file.name.endswith((*ROWS, *TEXTS))]
    reasons = {file: refusal(file, check, word) for file in sorted(files, key=lambda file: rank(file, split))}
    taken = [file for file, reason in reasons.items() if reason is None]
    return Files(taken, {file.name: reason for file, reason in reasons.items() if reason is not None})


def find_one(folder: Path, documented: str, check: Callable[[Path], object], split: str = "", word: str = "") -> Files:
    """The first of them. Without any it is an error that says why others are none."""
    taken, left_out = find(folder, documented, check, split, word)
    if not taken:
        why = "".join(f"; {name} is none: {reason}" for name, reason in left_out.items())
        raise FileNotFoundError(f"no {documented} in {folder}{why}")
    return Files(taken[:1], left_out | {file.name: f"{taken[0].name} was taken" for file in taken[1:]})


def refusal(file: Path, check: Callable[[Path], object], word: str) -> str | None:
    if "train" in file.name.lower():
        return "a training split"
    if word not in file.name.lower():
        return f"its name does not hold {word!r}"
    try:
        check(file)
    except FAILURES as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        return reason.removeprefix(f"{file}, ").removeprefix(f"{file} ")
    return None


def rank(file: Path, split: str) -> tuple[bool, str]:
    return not any(name in file.name.lower() for name in SPLITS.get(split, ())), file.name


class Set(NamedTuple):
    """A data set: its documented file, the split lm-eval calls it, how many rows the paper's own has if that is known,
    and what a row must hold."""

    file: str
    split: str
    rows: int | None
    fields: tuple[str, ...]
    convert: Callable[[Row], Row] = dict
    read: Callable[[Path], Iterator[tuple[int, Row]]] | None = None  # of a file that does not hold rows
    word: str = ""  # in the name of another file, where the folder is not this set's alone


def find_file(data: Set, folder: Path) -> Files:
    """The documented file, or another of its shape; and the others, with the reason why they are not read."""
    return find_one(folder, data.file, lambda file: next(checked_rows(data, file)), data.split, data.word)


def read_rows(data: Set, folder: Path) -> list[Row]:
    """All rows, checked. A row that is not as it should be is an error: without it the score would be another."""
    (file,) = find_file(data, folder).taken
    return list(checked_rows(data, file))


def checked_rows(data: Set, file: Path) -> Iterator[Row]:
    number = 0
    for number, row in (data.read or read_file)(file):
        if missing := [name for name in data.fields if name not in row]:
            raise ValueError(f"{file}, row {number}: {', '.join(missing)} is missing")
        yield converted(data.convert, row, f"{file}, row {number}")
    if not number:
        raise ValueError(f"{file} has no rows")


def read_file(file: Path) -> Iterator[tuple[int, Row]]:
    """The rows of jsonl or parquet, with their numbers."""
    if file.name.endswith(TEXTS):
        raise ValueError(f"{file} is a text, expected rows: {', '.join(ROWS)}")
    return enumerate(parquet_rows(file), 1) if file.suffix == ".parquet" else read_jsonl(file)


def parquet_rows(file: Path) -> Iterator[Row]:
    try:
        from gated_deltanet.data import parquet
    except ModuleNotFoundError as error:
        raise needs(f"reading {file}", "pyarrow") from error
    return parquet.whole_rows(file)


def converted(convert: Callable[[Row], Row], row: Row, where: str) -> Row:
    try:
        return convert(row)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def text(row: Row, name: str) -> str:
    if not is_text(found := given(row, name)):
        raise ValueError(f"{name} is {str(found)[:60]!r}, expected a string that is not empty")
    return found


def texts(row: Row, name: str) -> list[str]:
    """A list of at least one, none of them empty: an empty answer would be in every text."""
    found = given(row, name)
    if not isinstance(found, list) or not found or not all(map(is_text, found)):
        raise ValueError(f"{name} is {str(found)[:60]!r}, expected a list of strings that are not empty")
    return found


def given(row: Row, name: str) -> Any:
    if row.get(name) is None:
        raise ValueError(f"{name} is missing")
    return row[name]


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def read_jsonl(file: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(read_text(file).split("\n"), 1):  # splitlines() would cut at U+2028 in a string too
        if not line.strip():
            continue
        try:
            row = parse_json(line, "it", strict=False)
        except ValueError as error:
            raise ValueError(f"{file}, row {number}: malformed JSON") from error
        if not isinstance(row, dict):
            raise ValueError(f"{file}, row {number} is a {type(row).__name__}, expected an object")
        yield number, row


def read_text(file: Path) -> str:
    """Newlines as they are: WikiText's tell where an article begins."""
    try:
        content = file.read_bytes()
        return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def hub_rows(dataset: str, name: str | None, split: str, convert: Callable[[Row], Row]) -> list[Row]:
    """All rows of a data set of the Hugging Face hub, checked. Needs `datasets`."""
    from datasets import disable_progress_bars  # pyright: ignore[reportMissingImports]

    from gated_deltanet.data import hub

    disable_progress_bars()
    hub.check_available(dataset)
    rows = enumerate(hub.load_dataset(dataset, name, split=split), 1)
    return [converted(convert, dict(row), f"{dataset}, row {number}") for number, row in rows]


def file_notes(sets: dict[str, Any]) -> list[str]:
    """Where another file than the documented one was looked for, which it is, and why others are not read."""
    found = {name: each for name, each in sets.items() if each.get("files_left_out")}
    return [
        f"{name} is {Path(each['source']).name}; not read: "
        + "; ".join(f"{file}: {reason}" for file, reason in each["files_left_out"].items())
        + "."
        for name, each in found.items()
    ]
