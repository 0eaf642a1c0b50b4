"""Needles in haystacks for small models: S-NIAH-1 to 3 in miniature, where only answers are learnt.

    … hay … K V … hay … hay … K      the answer is V

Hay is bytes of text, a key K is one of 24 further tokens, a value one or four of 24 others. Which value a key has is
drawn anew for every row, so that nothing but the row can tell it. Small models learn to recall from rows that are short
at first and ask for all their needles, and from nothing else in a quarter of an hour: docs/log.md.
"""

import random
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator

from gated_deltanet.data.sources import documents
from gated_deltanet.eval.needle import REPEATED, essays
from gated_deltanet.synthetic.batch import NOT_ASKED, Batch

WORDS = 24  # keys, and as many values
KEYS, VALUES = range(256, 256 + WORDS), range(256 + WORDS, 256 + 2 * WORDS)
VOCAB_SIZE = VALUES.stop
MOST = 3  # needles of a row to learn from
NOVELS, EXCERPT = 20, 60_000  # whose characters, from this one on, are hay


class Task(NamedTuple):
    """By RULER's names."""

    essays: bool  # the haystack; else one line again and again
    words: int  # of a value


TASKS = {"S-NIAH-1": Task(False, 1), "S-NIAH-2": Task(True, 1), "S-NIAH-3": Task(True, 4)}


class Hay(NamedTuple):
    line: bytes  # of S-NIAH-1
    novels: bytes  # to learn from
    essays: bytes  # to be asked in


def read_hay(data_dir: Path) -> Hay:
    """data_dir: holds novels_en/train and paul_graham_essays."""
    novels = islice(documents(str(data_dir / "novels_en" / "train")), NOVELS)
    learnt = "".join(each.text[EXCERPT : 2 * EXCERPT] or each.text for each in novels)
    return Hay(f"{REPEATED} ".encode(), learnt.encode(), essays(data_dir).encode())


def batch(generator: Generator, n: int, length: int, hay: Hay) -> Batch:
    """n rows to learn from, of one task and up to three needles."""
    rng = seeded(generator)
    task, needles = TASKS[rng.choice(list(TASKS))], rng.randint(1, MOST)
    return rows(rng, n, length, task, needles, hay.novels if task.essays else hay.line)


def questions(generator: Generator, n: int, length: int, name: str, hay: Hay) -> Batch:
    """n rows of one needle each, in a haystack that was not learnt from."""
    task = TASKS[name]
    return rows(seeded(generator), n, length, task, 1, hay.essays if task.essays else hay.line)


def seeded(generator: Generator) -> random.Random:
    return random.Random(int(torch.randint(2**62, (), generator=generator)))


def rows(rng: random.Random, n: int, length: int, task: Task, needles: int, text: bytes) -> Batch:
    made = [row(rng, length, task, needles, text) for _ in range(n)]
    tokens, targets = (torch.tensor(each) for each in zip(*made, strict=True))
    return Batch(tokens, targets)


def row(rng: random.Random, length: int, task: Task, needles: int, text: bytes) -> tuple[list[int], list[int]]:
    """Needles at random places of the hay, then each again; its values are asked for."""
    keys = rng.sample(KEYS, needles)
    facts = [[key, *rng.choices(VALUES, k=task.words)] for key in keys]
    room = length - 2 * needles * (1 + task.words)
    if room < 0:
        raise ValueError(f"a row of {length} tokens, expected at least {length - room} for {needles} needles")
    tokens: list[int] = list(some(rng, text, room))
    for place, fact in zip(sorted(rng.choices(range(room + 1), k=needles), reverse=True), facts, strict=True):
        tokens[place:place] = fact
    targets = [NOT_ASKED] * len(tokens)
    for fact in rng.sample(facts, needles):
        tokens += fact
        targets += [*fact[1:], NOT_ASKED]
    return tokens, targets


def some(rng: random.Random, text: bytes, n: int) -> bytes:
    """From a random place, and again from the beginning where it ends."""
    at = rng.randrange(len(text))
    found = text[at : at + n]
    return found if len(found) == n else (found + text * (n // len(text) + 1))[:n]
