"""What an evaluation leaves behind: a document, tables, notes and a figure; and its answers, kept as they are made."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.files import append, as_json, read_lines, write, write_text

Table: TypeAlias = tuple[str, list[str], list[list[str]]]  # title, columns, cells
Track: TypeAlias = Callable[[Sequence[Any], str], Iterable[Any]]  # yields the items and shows how many are done

# A file, a row, a data set or a package that is not there; the hub's are OSErrors.
FAILURES = (ValueError, OSError, KeyError, ModuleNotFoundError)


@dataclass(frozen=True)
class Result:
    """The result of one suite.

    document: all numbers, of plain values. table: in the paper's layout. screen: what of it fits on a terminal. notes:
    what to know when comparing it. figure: draws it to a PNG, if there is something to draw.
    """

    suite: str
    document: dict[str, Any]
    table: Table
    screen: Table
    notes: list[str]
    figure: Callable[[Path], None] | None = None

    def __str__(self) -> str:
        return as_text(self.screen, self.notes)

    def as_markdown(self) -> str:
        return as_text(self.table, self.notes)

    def as_json(self) -> str:
        return as_json(self.document)

    def save(self, folder: str | Path) -> None:
        """suite.json, suite.md and, if there is a figure, suite.png."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{self.suite}.json", self.as_json() + "\n")
        write_text(folder / f"{self.suite}.md", self.as_markdown())
        if self.figure:
            self.figure(folder / f"{self.suite}.png")


def as_text(table: Table, notes: Sequence[str]) -> str:
    """In Markdown."""
    title, columns, cells = table
    lines = (f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *cells))
    return f"{title}\n\n{''.join(lines)}\n" + "".join(f"- {note}\n" for note in notes)


class Failed(NamedTuple):
    reason: str


def attempt_each(names: Iterable[str], evaluate: Callable[[str], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """By name what could be evaluated, and the reason why something could not: a failure is never a score of zero."""
    found = {name: attempt(evaluate, name) for name in names}
    left_out = {name: each.reason for name, each in found.items() if isinstance(each, Failed)}
    return {name: each for name, each in found.items() if name not in left_out}, left_out


def attempt(evaluate: Callable[[str], Any], name: str) -> Any:
    try:
        return evaluate(name)
    except FAILURES as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        return Failed(" ".join(str(message).split()) or type(error).__name__)


def check_any(found: Any, left_out: dict[str, str]) -> None:
    """That something could be evaluated."""
    if not found:
        raise ValueError(f"nothing could be evaluated: {'; '.join(dict.fromkeys(left_out.values()))}")


class Answers:
    """Answers by question, in a file of one line of JSON each: an evaluation that was killed goes on from there."""

    def __init__(self, file: Path | None = None):
        """file: None: in memory only."""
        self.file, self.known = file, read_answers(file) if file else {}

    def __contains__(self, question: str) -> bool:
        return key_of(question) in self.known

    def __getitem__(self, question: str) -> Any:
        return self.known[key_of(question)]

    def add(self, answers: dict[str, Any]) -> None:
        """By question."""
        new = {key_of(question): answer for question, answer in answers.items()}
        self.known |= new
        if self.file:
            append(self.file, "".join(json.dumps([key, answer]) + "\n" for key, answer in new.items()))


def answer_each(
    questions: Sequence[str], ask: Callable[[list[str]], list[Any]], file: Path | None, at_once: int = 1
) -> Iterator[Any]:
    """The answer to each question: from the file if it is there, else asked for, some at once, and added to it."""
    answers = Answers(file)
    for start in range(0, len(questions), at_once):
        here = questions[start : start + at_once]
        if unknown := [question for question in here if question not in answers]:
            answers.add(dict(zip(unknown, ask(unknown), strict=True)))
        yield from (answers[question] for question in here)


def answer_file(folder: str | Path | None, identity: str | None, *settings: object) -> Path | None:
    """The file in a folder with the answers of this model, asked with these settings. identity: changes when the model
    would answer differently."""
    if folder is None:
        return None
    if identity is None:
        raise ValueError("answers of a model in memory cannot be kept, expected one opened from its folder: eval.open")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"answers-{sha256(repr((identity, settings)).encode()).hexdigest()[:16]}.jsonl"


def read_answers(file: Path) -> dict[str, Any]:
    """By the hash of the question. A last line that was cut short does not count, and is taken away."""
    if not file.exists():
        return {}
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write(file, lambda unfinished: unfinished.write_bytes(whole))
    return dict(key_and_answer(line, where) for where, line in read_lines(file, strict=False))


def key_and_answer(line: Any, where: str) -> tuple[str, Any]:
    if not isinstance(line, list) or len(line) != 2 or not isinstance(line[0], str):
        raise ValueError(f"{where} is {short(line)}, expected a hash and an answer; delete the line to ask again")
    return line[0], line[1]


def key_of(question: str) -> str:
    return sha256(question.encode()).hexdigest()[:32]


def untracked(items: Sequence[Any], what: str) -> Iterable[Any]:
    """A `Track` that shows nothing."""
    return items
