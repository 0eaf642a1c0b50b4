"""Data sets as files of a folder, their rows checked; those of table 3 as lm-eval's tasks want them."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


class Set(NamedTuple):
    """A data set: its file, the split lm-eval calls it, how many rows the paper's own has if that is known,
    and what a row must hold."""

    file: str
    split: str
    rows: int | None
    fields: tuple[str, ...]
    convert: Callable[[Row], Row] = dict
    read: Callable[[Path], Iterator[tuple[int, Row]]] | None = None  # of a file that is not jsonl


def read_rows(data: Set, folder: Path) -> list[Row]:
    """All rows, checked. A row that is not as it should be is an error: without it the score would be another."""
    file = folder / data.file
    if not file.exists():
        raise FileNotFoundError(f"no {data.file} in {folder}")
    rows = []
    for line, row in (data.read or read_jsonl)(file):
        if missing := [name for name in data.fields if name not in row]:
            raise ValueError(f"{file}, row {line}: {', '.join(missing)} is missing")
        rows.append(converted(data.convert, row, f"{file}, row {line}"))
    if not rows:
        raise ValueError(f"{file} has no rows")
    return rows


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
            row = json.loads(line)
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
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def read_articles(file: Path) -> Iterator[tuple[int, Row]]:
    """WikiText cut at its titles, ` = Title = `, as EleutherAI/wikitext_document_level cuts it."""
    pages: list[list[str]] = [[]]
    for line in read_text(file).split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            pages.append([])
        pages[-1].append(line)
    texts = ("\n".join(lines) for lines in pages)
    yield from enumerate(({"page": text} for text in texts if text.strip()), 1)


def with_label(row: Row) -> Row:
    """BoolQ's own `answer` as SuperGLUE's label."""
    return row if "label" in row else row | {"label": int(row["answer"])}


ARC = ("question", "choices", "answerKey")
COMMONSENSE = {  # by lm-eval's names
    "wikitext": Set("wikitext2/wiki.test.raw.gz", "test", 62, ("page",), read=read_articles),
    "lambada_openai": Set("lambada/lambada_test.jsonl.gz", "test", 5153, ("text",)),
    "piqa": Set("piqa/validation.jsonl.gz", "validation", 1838, ("goal", "sol1", "sol2", "label")),
    "hellaswag": Set(
        "hellaswag/validation.jsonl.gz", "validation", 10042, ("activity_label", "ctx_a", "ctx_b", "endings", "label")
    ),
    "winogrande": Set(
        "winogrande/validation_xl.jsonl.gz", "validation", 1267, ("sentence", "option1", "option2", "answer")
    ),
    "arc_easy": Set("arc/ARC-Easy-test.jsonl.gz", "test", 2376, ARC),
    "arc_challenge": Set("arc/ARC-Challenge-test.jsonl.gz", "test", 1172, ARC),
    "social_iqa": Set(
        "siqa/validation.jsonl.gz",
        "validation",
        1954,
        ("context", "question", "answerA", "answerB", "answerC", "label"),
    ),
    "boolq": Set("boolq/validation.jsonl.gz", "validation", 3270, ("question", "passage", "answer"), with_label),
}
