"""The tasks as data: what is trained on, what is scored, how fast and for how long."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Generator

from . import copying, groups, mqar, recall, rewriting
from .batch import Batch
from .models import Transition

SCORED = 256  # rows of each level
RECALL_LR = 3e-3  # of all architectures: with 5e-3 attention does not begin to recall in 800 steps


class Task(NamedTuple):
    title: str
    vocab_size: int
    chance: float  # of guessing right
    level: str  # what the levels count
    trained: tuple[int, ...]  # levels, a batch of each in turn
    scored: tuple[int, ...]
    train: Callable[[Generator, int], Batch]  # a batch of this level
    score: Callable[[Generator, int], Batch]
    peak_lr: float
    steps: int
    transitions: tuple[Transition, ...] = ()  # empty: architectures are compared


def word_problem(
    title: str,
    m: int,
    *,
    moves: Sequence[int] | None = None,
    scored: tuple[int, ...],
    steps: int,
    transitions: Sequence[tuple[int, int]],
) -> Task:
    """Trained on the shortest length; of longer rows the second half is scored."""
    order = len(groups.elements(m))
    return Task(
        title,
        vocab_size=order + 1,
        chance=1 / order,
        level="length",
        trained=scored[:1],
        scored=scored,
        train=lambda generator, length: groups.words(generator, 64, m, length, moves=moves),
        score=lambda generator, length: groups.second_half(groups.words(generator, SCORED, m, length, moves=moves)),
        peak_lr=1e-2,  # 2e-3 solves the trained length as well, but β stays too far from 2 for twice the length
        steps=steps,
        transitions=tuple(Transition(*each) for each in transitions),
    )


TASKS = {
    "mqar": Task(
        "Multi-query associative recall (MQAR)",
        vocab_size=mqar.vocab_size(),
        chance=1 / mqar.KEYS,
        level="pairs",
        trained=(4, 8, 16),
        scored=(4, 8, 16),
        train=lambda generator, pairs: mqar.mqar(generator, 256 // pairs, pairs),  # 1024 tokens
        score=lambda generator, pairs: mqar.mqar(generator, SCORED, pairs),
        peak_lr=RECALL_LR,
        steps=1600,  # a transformer may begin to recall only after 1000
    ),
    "rewriting": Task(
        "Recall of rewritten keys",
        vocab_size=rewriting.VOCAB_SIZE,
        chance=1 / rewriting.VALUES,
        level="times half of the keys are written",
        trained=(1, 2, 4, 8),
        scored=(1, 2, 4, 8),
        train=lambda generator, times: rewriting.rewritten(generator, 32, times),
        score=lambda generator, times: rewriting.rewritten(generator, SCORED, times),
        peak_lr=RECALL_LR,
        steps=800,
    ),
    "copy": Task(
        "Selective copying",
        vocab_size=copying.VOCAB_SIZE,
        chance=1 / copying.SYMBOLS,
        level="symbols",
        trained=(4, 8),
        scored=(4, 8),
        train=lambda generator, symbols: copying.selective_copy(generator, 32, symbols, places=16),
        score=lambda generator, symbols: copying.selective_copy(generator, SCORED, symbols, places=16),
        peak_lr=RECALL_LR,
        steps=1000,  # of 8 symbols Gated DeltaNet knows 73 % after 500
    ),
    "recall": Task(
        "Noisy in-context recall",
        vocab_size=recall.VOCAB_SIZE,
        chance=1 / recall.VALUES,
        level="noise among 16 pairs",
        trained=(0, 16),
        scored=(0, 16, 64),
        train=lambda generator, noise: recall.noisy_recall(generator, 32, pairs=16, noise=noise),
        score=lambda generator, noise: recall.noisy_recall(generator, SCORED, pairs=16, noise=noise),
        peak_lr=RECALL_LR,
        steps=800,  # Gated DeltaNet needs 400; a transformer has not begun after all of them
    ),
    "parity": word_problem("Parity", 2, scored=(40, 80, 160), steps=300, transitions=[(1, 1), (1, 2)]),
    "s3": word_problem(  # with all 6 moves one seed in three learns it; with two that make them all, every one
        "S3, of a swap and a three-cycle",
        3,
        moves=(groups.number((1, 0, 2)), groups.number((1, 2, 0))),  # the second needs two swaps
        scored=(24, 48, 96),
        steps=300,
        transitions=[(1, 2), (2, 1), (2, 2)],
    ),
    "s5": word_problem(  # with all 120 moves nothing is learned in 200 steps; with two that make them all, within 100
        "S5, of a swap and a five-cycle",
        5,
        moves=(groups.number((1, 0, 2, 3, 4)), groups.number((1, 2, 3, 4, 0))),  # the second needs four swaps
        scored=(16, 32, 64),
        steps=500,
        transitions=[(1, 2), (4, 1), (4, 2)],
    ),
}
