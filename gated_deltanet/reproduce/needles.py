"""Needles for small models: a short template, the same in training and in evaluation, with keys that are kept apart."""

import random
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gated_deltanet.eval.needle import REPEATED, cut, essays, sentences, words
from gated_deltanet.eval.prefix_sharing import Request

Words: TypeAlias = tuple[Sequence[str], Sequence[str]]  # adjectives and nouns, of which keys are made

HELD_OUT = 5  # one key in so many is never trained on
NEEDLE = " The {kind} of {key} is {value}."
QUESTION = " The {kind} of {key} is"
DEPTHS = 5  # at which needles are hidden: 0, 25, …, 100 %


class Task(NamedTuple):
    essays: bool  # the haystack; else one line again and again
    kind: str
    value: Callable[[random.Random], str]


def number(rng: random.Random) -> str:
    return str(rng.randint(1000, 9999))


def code(rng: random.Random) -> str:
    """Longer, as RULER's uuid is."""
    return f"{rng.getrandbits(32):08x}"


TASKS = {  # by RULER's names
    "S-NIAH-1": Task(False, "number", number),
    "S-NIAH-2": Task(True, "number", number),
    "S-NIAH-3": Task(True, "code", code),
}


def key(rng: random.Random, of: Words, *, held_out: bool) -> str:
    while True:
        found = f"{rng.choice(of[0])}-{rng.choice(of[1])}"
        if (sha256(found.encode()).digest()[0] % HELD_OUT == 0) == held_out:
            return found


def document(rng: random.Random, hay: Sequence[str], of: Words, n_words: int) -> str:
    """A text for training: sentences with one to three needles among them, and at the end what they were."""
    task = TASKS[rng.choice(list(TASKS))]
    taken = [REPEATED] * (n_words // 18) if not task.essays else some_sentences(rng, hay, n_words)
    facts = [{"kind": task.kind, "key": key(rng, of, held_out=False), "value": task.value(rng)} for _ in range(3)]
    facts = facts[: rng.randint(1, 3)]
    for fact in facts:
        taken.insert(rng.randint(0, len(taken)), NEEDLE.format(**fact).strip())
    rng.shuffle(facts)
    return " ".join(taken) + "".join(NEEDLE.format(**fact) for fact in facts)


def some_sentences(rng: random.Random, hay: Sequence[str], n_words: int) -> list[str]:
    """One after another from a random place, so many words."""
    at, taken = rng.randrange(len(hay)), []
    while n_words > 0:
        taken.append(hay[at % len(hay)])
        n_words -= len(taken[-1].split())
        at += 1
    return taken


def haystack(task: Task, folder: Path, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The tokens of each sentence."""
    return sentences(essays(folder), encode) if task.essays else [encode(f" {REPEATED}")]


def questions(
    name: str, length: int, n: int, folder: Path, encode: Callable[[str], list[int]], first_token: int
) -> list[Request]:
    """Of one needle each, with prompt and value of `length` tokens: what the model is to say is scored."""
    task, of = TASKS[name], words(folder)
    hay = haystack(task, folder, encode)
    return [ask(task, f"{name} {length} {i}", length, i, hay, of, encode, first_token) for i in range(n)]


def ask(
    task: Task,
    seed: str,
    length: int,
    number: int,
    hay: Sequence[list[int]],
    of: Words,
    encode: Callable[[str], list[int]],
    first_token: int,
) -> Request:
    rng = random.Random(seed)
    fact = {"kind": task.kind, "key": key(rng, of, held_out=True), "value": task.value(rng)}
    needle, question, value = (encode(text.format(**fact)) for text in (NEEDLE, QUESTION, " {value}"))
    room = length - 1 - len(needle) - len(question) - len(value)
    if room < len(needle):
        raise ValueError(f"a haystack of {length} tokens has room for {room}, expected more than the needle's")
    turned = rng.randrange(len(hay))
    before, after = cut([*hay[turned:], *hay[:turned]], room, number % DEPTHS / (DEPTHS - 1))
    return Request([first_token, *before, *needle, *after, *question, *value], len(value))
