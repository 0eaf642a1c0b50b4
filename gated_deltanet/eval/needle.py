"""Table 2: S-NIAH-1/2/3 of RULER, a needle in a haystack that is sized to the token.

RULER grows a haystack of essays by 500 words at a time, and with tokens that are short it shrinks to one word. Here
prompt and answer fill the length exactly, the needle lies between two sentences, and where is recorded.
"""

import random
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from gated_deltanet.paper import NEEDLE_LENGTHS, TABLE_2
from gated_deltanet.quantity import show_size
from gated_deltanet.result import Result, Table, Track, answer_each, answer_file, attempt_each, check_any, untracked

from .checkpoint import as_model
from .data_sets import read_text
from .model import Model

Encode: TypeAlias = Callable[[str], list[int]]

NEEDLES = 500  # of each task and length, as RULER has them
TOKENS = 16384  # of haystacks, read at once
ANSWER = 128  # tokens kept free for the answer, as RULER does
DEPTHS = 11  # 0, 10, …, 100 %
REPEATED = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
HEAD = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n"
)
NEEDLE = " One of the special magic {kind}s for {key} is: {value}."
TAIL = (
    "\nWhat is the special magic {kind} for {key} mentioned in the provided text? "
    "The special magic {kind} for {key} mentioned in the provided text is"
)
WORDS = (("amber", "brave", "calm", "early", "gentle", "quiet"), ("anchor", "bridge", "candle", "forest", "river"))


class Task(NamedTuple):
    essays: bool  # or one line again and again
    kind: str  # of the value


TASKS = {"S-NIAH-1": Task(False, "number"), "S-NIAH-2": Task(True, "number"), "S-NIAH-3": Task(True, "uuid")}


class Question(NamedTuple):
    tokens: list[int]
    value: str
    depth: float  # of the needle: 0 at the beginning, 1 at the end


def needle(
    model: Any,
    tokenizer: Any = None,
    *,
    lengths: Sequence[int] = NEEDLE_LENGTHS,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """Percent of needles found, by task and length.

    model, tokenizer: see `eval.as_model`. lengths: of haystacks with question and answer, in tokens. limit: needles of
    each task and length; None: 500. data_dir: a folder with paul_graham_essays and wordlists; without it S-NIAH-2 and
    S-NIAH-3 are left out, and keys are made of a few words. keep: the folder in which answers are kept. track: is given
    the prompts.
    """
    start, model, folder = perf_counter(), as_model(model, tokenizer), Path(data_dir) if data_dir else None
    wanted = {f"{task} {length}": (task, length) for task, length in product(TASKS, sorted(set(lengths)))}

    def evaluate(name: str) -> list[dict[str, Any]]:
        task, length = wanted[name]
        questions = ask_all(model, task, length, limit or NEEDLES, folder)
        return find_needles(model, task, length, questions, keep, track)

    found, left_out = attempt_each(wanted, evaluate)
    check_any(found, left_out)
    counted = cells([each for results in found.values() for each in results])
    tasks = dict.fromkeys(cell["task"] for cell in counted)
    document = {
        "left_out": left_out,
        "cells": counted,
        "effective_length": {task: effective_length(counted, task) for task in tasks},
        "keys": "built in" if words(folder) is WORDS else "wordlists",
        "seconds": perf_counter() - start,
    }
    return result(document, model.name)


def result(document: dict[str, Any], name: str) -> Result:
    def draw(file: Path) -> None:
        from .figures import draw_needle

        draw_needle(document, name, file)

    return Result("needle", document, table(document, name), short_table(document, name), notes(document), draw)


def ask_all(model: Model, task: str, length: int, needles: int, folder: Path | None) -> list[Question]:
    if model.max_positions is not None and length > model.max_positions:
        raise ValueError(f"{length} tokens, expected at most the {model.max_positions} that the model can read")
    keys, hay = words(folder), haystack(TASKS[task], folder, model.encode)
    return [ask(TASKS[task], length, i, hay, keys, model.encode, model.first_token) for i in range(needles)]


def find_needles(
    model: Model, task: str, length: int, questions: Sequence[Question], keep: str | Path | None, track: Track
) -> list[dict[str, Any]]:
    """Of each question where the needle was, and whether it was found."""
    prompts = {" ".join(map(str, question.tokens)): question.tokens for question in questions}

    def complete(some: list[str]) -> list[str]:
        return model.complete([prompts[each] for each in some], ANSWER)

    file = answer_file(keep, model.identity, ANSWER)
    made = answer_each(list(prompts), complete, file, at_once=max(1, TOKENS // length))
    tracked = zip(track(questions, f"{task}, {length} tokens"), made, strict=True)
    return [
        {"task": task, "length": length, "depth": question.depth, "right": is_right(text, question.value)}
        for question, text in tracked
    ]


def essays(folder: Path) -> str:
    files = sorted((folder / "paul_graham_essays").glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no paul_graham_essays/*.txt in {folder}")
    return " ".join(" ".join(read_text(file).split()) for file in files)


def words(folder: Path | None) -> tuple[Sequence[str], Sequence[str]]:
    """Adjectives and nouns, of which keys are made: RULER's, or without its lists a few."""
    files = [folder / "wordlists" / name for name in ("adjectivelist.txt", "nounlist.txt")] if folder else []
    if not files or not all(file.exists() for file in files):
        return WORDS
    adjectives, nouns = (sorted({line for line in read_text(file).split("\n") if line}) for file in files)
    return adjectives, nouns


def haystack(task: Task, folder: Path | None, encode: Encode) -> list[list[int]]:
    if not task.essays:
        return [encode(f"{REPEATED}\n")]
    if folder is None:
        raise ValueError("its haystack is of essays, expected --data-dir with paul_graham_essays/*.txt")
    return sentences(essays(folder), encode)


def sentences(text: str, encode: Encode) -> list[list[int]]:
    """The tokens of each sentence, with the space before it."""
    return [encode(f" {each}") for each in re.split(r"(?<=[.!?])\s+", text) if each]


def ask(
    task: Task,
    length: int,
    number: int,
    hay: Sequence[list[int]],
    keys: tuple[Sequence[str], Sequence[str]],
    encode: Encode,
    first_token: int,
) -> Question:
    """Question `number`, always the same: `length` tokens with room for the answer. first_token: of a document."""
    rng = random.Random(f"{task} {length} {number}")
    key = f"{rng.choice(keys[0])}-{rng.choice(keys[1])}"
    value = str(UUID(int=rng.getrandbits(128), version=4) if task.kind == "uuid" else rng.randint(10**6, 10**7 - 1))
    fields = {"kind": task.kind, "key": key, "value": value}
    head, needle, tail = (encode(text.format(**fields)) for text in (HEAD, NEEDLE, TAIL))
    room = length - ANSWER - 1 - len(head) - len(needle) - len(tail)
    if room < len(needle):
        raise ValueError(f"a haystack of {length} tokens has room for {room}, expected more than the needle's")
    depth = number % DEPTHS / (DEPTHS - 1)
    before, after = cut(hay, room, depth)
    return Question([first_token, *head, *before, *needle, *after, *tail], value, depth)


def cut(hay: Sequence[list[int]], room: int, depth: float) -> tuple[list[int], list[int]]:
    """So many tokens of sentences, again and again if there are too few, in two at the end of one near this depth."""
    found: list[int] = []
    ends = [0]
    while len(found) < room:
        found += hay[(len(ends) - 1) % len(hay)]
        ends.append(min(len(found), room))
    at = min(ends, key=lambda end: abs(end - depth * room))
    return found[:at], found[at:room]


def is_right(text: str, value: str) -> bool:
    return value.lower() in text.lower()


def accuracy(rights: Sequence[bool]) -> dict[str, Any]:
    """In percent, with its standard error."""
    n, share = len(rights), sum(rights) / len(rights)
    return {
        "accuracy": 100 * share,
        "stderr": 100 * (share * (1 - share) / (n - 1)) ** 0.5 if n > 1 else None,
        "rows": n,
    }


def cells(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """results: {task, length, depth, right} of each question. One cell a task and length, with its depths."""
    found = []
    for task, length in dict.fromkeys((each["task"], each["length"]) for each in results):
        here = [each for each in results if (each["task"], each["length"]) == (task, length)]
        depths = sorted({each["depth"] for each in here})
        by_depth = {d: accuracy([each["right"] for each in here if each["depth"] == d])["accuracy"] for d in depths}
        found.append({"task": task, "length": length, **accuracy([each["right"] for each in here]), "depths": by_depth})
    return found


def effective_length(found: Sequence[dict[str, Any]], task: str, least: float = 85.0) -> int | None:
    """The longest length up to which every accuracy is at least this, in percent."""
    longest = None
    for cell in sorted((cell for cell in found if cell["task"] == task), key=lambda cell: cell["length"]):
        if cell["accuracy"] < least:
            break
        longest = cell["length"]
    return longest


def table(document: dict[str, Any], name: str) -> Table:
    """The paper's layout: a column a task and length."""
    cells = document["cells"]
    columns = [f"{cell['task']} {show_size(cell['length'])}" for cell in cells]
    errors = ["–" if cell["stderr"] is None else f"{cell['stderr']:.1f}" for cell in cells]
    paper = [[f"{model} 1.3B (paper)", *(shown(model, cell) for cell in cells)] for model in TABLE_2]
    ours = [f"**{name}**", *(f"{cell['accuracy']:.1f}" for cell in cells)]
    rows = ["rows", *(str(cell["rows"]) for cell in cells)]
    return (
        "Single needle in a haystack (table 2)",
        ["model", *columns],
        [ours, ["± standard error", *errors], rows, *paper],
    )


def shown(model: str, cell: dict[str, Any]) -> str:
    """The paper's number, if it has one."""
    values = dict(zip(NEEDLE_LENGTHS, TABLE_2[model].get(cell["task"], ()), strict=False))
    return str(values.get(cell["length"], "–"))


def short_table(document: dict[str, Any], name: str) -> Table:
    """For a terminal: one line a column."""
    title, columns, cells = table(document, name)
    lines = [list(line) for line in zip(columns[1:], *(row[1:] for row in cells), strict=True)]
    return f"{title}; the paper's are of 1.3B", ["", name, "±", "rows", *TABLE_2], lines


def notes(document: dict[str, Any]) -> list[str]:
    lengths = (f"{task}: {show_size(n) if n else 'none'}" for task, n in document["effective_length"].items())
    return [
        *(f"Left out: {task}: {reason}." for task, reason in document["left_out"].items()),
        f"Effective length (85 % right up to there): {', '.join(lengths)}.",
        "Haystacks are sized to the token, so the questions are not RULER's own.",
    ]
