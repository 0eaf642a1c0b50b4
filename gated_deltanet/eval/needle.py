"""Table 2: S-NIAH-1/2/3 of RULER, a needle in a haystack that is sized to the token.

RULER grows a haystack of essays by 500 words at a time, and with tokens that are short it shrinks to one word. Here
prompt and answer fill the length exactly, the needle lies between two sentences, and where is recorded.
"""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from .sets import read_text

Encode: TypeAlias = Callable[[str], list[int]]

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
    begin: int,
) -> Question:
    """Question `number`, always the same: `length` tokens with room for the answer. begin: a document's first token."""
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
    return Question([begin, *head, *before, *needle, *after, *tail], value, depth)


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
