"""Rows of the training length, in an order that is a function of seed and row number only.

An epoch: the documents, shuffled, one after another, are cut into rows of `length` positions, and the rows are
shuffled. A document that does not end with its row is continued in another one, from an empty state. The last row is
filled up with positions that learn nothing. So every token is learnt exactly once in an epoch, but for those of a
conversation that are not answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .corpus import Corpus

IGNORE = -100  # the target of a position that learns nothing


class Batch(NamedTuple):
    """Rows packed into one: what `CausalLM.loss` takes."""

    tokens: Tensor
    """[1, n L], int64."""
    targets: Tensor
    """[1, n L], int64: each token's successor in its document, at its end the end of text, or IGNORE."""
    cu_seqlens: Tensor
    """[N + 1], int64: where a state begins."""


class Epoch(NamedTuple):
    documents: np.ndarray
    """[n], in their order."""
    ends: np.ndarray
    """[n], the position after each."""
    rows: np.ndarray
    """[number of rows], in their order."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a corpus, epoch after epoch, without end.

    length: positions in a row. seed: None keeps documents and rows in order, for validation.
    reset: each document begins with an empty state; else each row.
    """

    corpus: Corpus
    length: int
    seed: int | None = 0
    reset: bool = True

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length is {self.length}, expected 1 or more positions in a row")
        if not len(self.corpus):
            raise ValueError("the corpus has no documents, expected one or more; a larger share for validation?")

    @cached_property
    def positions(self) -> int:
        """Of the documents, in an epoch."""
        return int(self.corpus.positions.sum())

    @cached_property
    def n_learnt(self) -> int:
        """Positions that learn something in an epoch."""
        return self.positions if self.corpus.learnt is None else n_targets(self, 0, size=self.per_epoch)

    @property
    def per_epoch(self) -> int:
        return -(-self.positions // self.length)

    @cached_property
    def epoch(self):
        """epoch(i) is the i-th Epoch; two are kept, as a batch may span them."""
        return lru_cache(2)(self._epoch)

    def _epoch(self, i: int) -> Epoch:
        documents = order(len(self.corpus), self.seed, i, 0)
        return Epoch(documents, self.corpus.positions[documents].cumsum(), order(self.per_epoch, self.seed, i, 1))


def order(n: int, seed: int | None, *stream: int) -> np.ndarray:
    """[n], 0, …, n - 1 shuffled: from raw bits, which numpy promises never to change."""
    if seed is None:
        return np.arange(n)
    bits = np.random.PCG64(np.random.SeedSequence([seed, *stream])).random_raw(n)
    return np.argsort(bits, kind="stable")


def batches(rows: Rows, step: int, *, size: int, micro: int, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
    """One rank's part of the `size` rows of a step, at most `micro` rows at a time.

    The parts of the ranks, one after another, are the batch of a single rank.
    """
    if min(step, rank) < 0 or min(size, micro) < 1 or rank >= ranks:
        raise ValueError(f"step {step}, size {size}, micro {micro}, rank {rank} of {ranks} is no batch")
    if size % ranks:
        raise ValueError(f"a batch of {size} rows cannot be shared by {ranks} ranks, expected a multiple")
    share = size // ranks
    first = step * size + rank * share
    for i in range(first, first + share, micro):
        yield take(rows, i, min(micro, first + share - i))


def n_targets(rows: Rows, step: int, *, size: int) -> int:
    """How many positions of the whole batch, on all ranks, learn something."""
    return sum(targets_of(rows, i) for i in range(step * size, (step + 1) * size))


def targets_of(rows: Rows, i: int) -> int:
    """How many positions of a row learn something."""
    if rows.corpus.learnt is not None:
        return sum(len(piece) - 1 if learns is None else int(learns.sum()) for piece, learns in pieces(rows, i))
    epoch, at = divmod(i, rows.per_epoch)
    return min(rows.length, rows.positions - int(rows.epoch(epoch).rows[at]) * rows.length)


def take(rows: Rows, first: int, n: int) -> Batch:
    """Rows first, …, first + n - 1 of the endless order."""
    L, begins = rows.length, []
    tokens = np.full(n * L, rows.corpus.end_of_text, np.int64)
    targets = np.full(n * L, IGNORE, np.int64)
    for i in range(n):
        at = i * L
        for piece, learns in pieces(rows, first + i):
            if rows.reset or at == i * L:
                begins.append(at)
            stop = at + len(piece) - 1
            tokens[at:stop], targets[at:stop] = piece[:-1], piece[1:]
            if learns is not None:
                targets[at:stop][~learns] = IGNORE
            at = stop
        if at < (i + 1) * L:
            begins.append(at)
    cu_seqlens = torch.tensor([*begins, n * L])
    return Batch(torch.from_numpy(tokens)[None], torch.from_numpy(targets)[None], cu_seqlens)


def pieces(rows: Rows, i: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """The documents of a row, or what of them lies in it, each with one token more: the last target.

    And which positions learn something; None: all do.
    """
    number, at = divmod(i, rows.per_epoch)
    epoch = rows.epoch(number)
    first = int(epoch.rows[at]) * rows.length
    stop = min(first + rows.length, rows.positions)
    j = int(np.searchsorted(epoch.ends, first, side="right"))
    while first < stop:
        document, end = int(epoch.documents[j]), int(epoch.ends[j])
        start = end - int(rows.corpus.positions[document])
        part = document, first - start, min(end, stop) - start
        yield rows.corpus.read(*part), rows.corpus.learns(*part)
        first, j = end, j + 1


def cuts(rows: Rows, epoch: int = 0) -> int:
    """How many times in an epoch a document is cut at the end of a row and goes on without its state."""
    ends = rows.epoch(epoch).ends
    return rows.per_epoch - 1 - int(np.count_nonzero(ends[:-1] % rows.length == 0))
