"""Needles in haystacks for small models: S-NIAH-1 to 3 in miniature.

    … hay … K V … hay … hay … K      the answer is V

Hay is bytes of text, a key K is one of 24 further tokens, a value one or four of 24 others. Which value a key has is
drawn anew for every row, so that nothing but the row can tell it. Small models learn to recall from rows that are short
and say their facts again and again, at first from answers only; then they learn to read the hay, too: docs/log.md.
"""

import random
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from gated_deltanet.data.sources import documents
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.needle import REPEATED, ask_all, essays
from gated_deltanet.eval.prefix_sharing import Request, scores
from gated_deltanet.models import CausalLM
from gated_deltanet.synthetic.batch import NOT_ASKED, Batch
from gated_deltanet.synthetic.train import stream

# by task and length: how many were asked, how many values were said right, and the loss of a value's token
Scores: TypeAlias = dict[str, dict[str, dict[str, dict[str, float]]]]

WORDS = 24  # keys, and as many values
KEYS, VALUES = range(256, 256 + WORDS), range(256 + WORDS, 256 + 2 * WORDS)
VOCAB_SIZE = VALUES.stop
LENGTHS = (32, 64, 64, 128, 128, 256, 256)  # of rows to learn from, in turn
FACTORS = (0.5, 1, 2, 4)  # of the longest, at which needles are hidden
MOST = 3  # facts of a row to learn from
SPACING = 10  # tokens of it for each time that one is said
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


def batch(generator: Generator, n: int, length: int, hay: Hay, *, answers_only: bool) -> Batch:
    """n rows to learn from, of one task and up to three facts. answers_only: else every token is to be foretold."""
    rng = seeded(generator)
    task, facts = TASKS[rng.choice(list(TASKS))], rng.randint(1, MOST)
    mentions = max(2 * facts, length // SPACING) - facts
    made = rows(rng, n, length, task, facts, mentions, hay.novels if task.essays else hay.line)
    return made if answers_only else Batch(made.tokens, next_tokens(made.tokens))


def questions(generator: Generator, n: int, length: int, name: str, hay: Hay) -> Batch:
    """n rows of one fact that is said once, in a haystack that was not learnt from."""
    task = TASKS[name]
    return rows(seeded(generator), n, length, task, 1, 1, hay.essays if task.essays else hay.line)


def seeded(generator: Generator) -> random.Random:
    return random.Random(int(torch.randint(2**62, (), generator=generator)))


def rows(rng: random.Random, n: int, length: int, task: Task, facts: int, mentions: int, text: bytes) -> Batch:
    made = [row(rng, length, task, facts, mentions, text) for _ in range(n)]
    tokens, targets = (torch.tensor(each) for each in zip(*made, strict=True))
    return Batch(tokens, targets)


def next_tokens(tokens: Tensor) -> Tensor:
    return F.pad(tokens[:, 1:], (0, 1), value=NOT_ASKED)


def row(rng: random.Random, length: int, task: Task, n: int, mentions: int, text: bytes) -> tuple[list[int], list[int]]:
    """n facts, said so many times at random places of the hay, then each once more; asked for from the second time."""
    facts = [[key, *rng.choices(VALUES, k=task.words)] for key in rng.sample(KEYS, n)]
    said = [*facts, *rng.choices(facts, k=mentions - n)]
    rng.shuffle(said)
    room = length - (mentions + n) * (1 + task.words)
    if room < 0:
        raise ValueError(f"a row of {length} tokens, expected at least {length - room} for {n} facts")
    hay, places = some(rng, text, room), sorted(rng.choices(range(room + 1), k=mentions))
    gaps = [hay[begin:end] for begin, end in pairwise((0, *places, room))] + [b""] * (n - 1)
    tokens: list[int] = []
    targets: list[int] = []
    known: set[int] = set()
    for gap, fact in zip(gaps, (*said, *rng.sample(facts, n)), strict=True):
        tokens += [*gap, *fact]
        values = fact[1:] if fact[0] in known else [NOT_ASKED] * task.words
        targets += [*[NOT_ASKED] * len(gap), *values, NOT_ASKED]
        known.add(fact[0])
    return tokens, targets


def some(rng: random.Random, text: bytes, n: int) -> bytes:
    """From a random place, and again from the beginning where it ends."""
    at = rng.randrange(len(text))
    found = text[at : at + n]
    return found if len(found) == n else (found + text * (n // len(text) + 1))[:n]


def asked(model: CausalLM, data_dir: Path, seed: int, limit: int) -> Scores:
    """Needles in essays, so many of each task and length."""
    generator, hay = stream(seed, 2), read_hay(data_dir)

    def one(name: str, factor: float) -> dict[str, float]:
        batch = questions(generator, limit, int(factor * LENGTHS[-1]), name, hay)
        return answers(model, batch, TASKS[name].words)

    return by_task(one)


@torch.no_grad()
def answers(model: CausalLM, batch: Batch, words: int, rows: int = 16) -> dict[str, float]:
    """words: of each value, all of which must be right."""
    right = loss = 0.0
    for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
        here = targets != NOT_ASKED
        logits = model.logits(model.hidden(tokens, keep_state=False)[0][here]).float()
        right += int((logits.argmax(-1) == targets[here]).unflatten(0, (-1, words)).all(1).sum())
        loss += float(F.cross_entropy(logits, targets[here], reduction="sum"))
    n = len(batch.tokens)
    return {"asked": n, "right": right, "loss": round(loss / (n * words), 4)}


def asked_by_ruler(model: OurModel, length: int, data_dir: Path, limit: int) -> Scores:
    """length: the model was trained with."""

    def one(name: str, factor: float) -> dict[str, float]:
        found = ask_all(model, name, int(factor * length), limit, data_dir)
        values = [model.encode(f" {each.value}") for each in found]
        said = [Request([*each.tokens, *value], len(value)) for each, value in zip(found, values, strict=True)]
        scored = scores(model.model, said)
        loss = -sum(each.logprob for each in scored) / sum(map(len, values))
        return {"asked": len(found), "right": sum(each.greedy for each in scored), "loss": round(loss, 4)}

    return by_task(one)


def by_task(one: Callable[[str, float], dict[str, float]]) -> Scores:
    return {"needles": {name: {str(factor): one(name, factor) for factor in FACTORS} for name in TASKS}}
