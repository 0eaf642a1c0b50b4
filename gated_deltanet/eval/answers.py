"""Answers kept as they are made, so that an evaluation that was killed goes on: one line of JSON each."""

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any


def answered(
    questions: Sequence[str], answer: Callable[[list[str]], list[Any]], file: Path | None, at_once: int = 1
) -> Iterator[Any]:
    """The answer to each question, of the file if it is there, else made, some at once, and added to it."""
    known, keys = kept(file) if file else {}, [sha256(question.encode()).hexdigest()[:32] for question in questions]
    for start in range(0, len(keys), at_once):
        here = range(start, min(start + at_once, len(keys)))
        if open_ones := [i for i in here if keys[i] not in known]:
            new = [keys[i] for i in open_ones]
            made = dict(zip(new, answer([questions[i] for i in open_ones]), strict=True))
            known |= made
            if file:
                with file.open("a") as lines:
                    lines.writelines(json.dumps([key, value]) + "\n" for key, value in made.items())
        yield from (known[keys[i]] for i in here)


def kept(file: Path) -> dict[str, Any]:
    """By the hash of the question. A last line that was cut short does not count, and is taken away."""
    text = file.read_text() if file.exists() else ""
    whole, end, rest = text.rpartition("\n")
    if rest:
        file.write_text(whole + end)
    return dict(json.loads(line) for line in whole.splitlines())
