"""State tracking: the word problem of a symmetric group, which is to keep track of moves that do not commute.

    start  213  321  213 …    moves: the first two change places, then the outer two, then the first two
           213  312  132      the answers: what has become of 123

Each token is a permutation of m things, and after it the model has to give the product of all up to there. S2 is
parity: a token swaps or does not, and the answer is whether the swaps so far are odd. A linear RNN does this by
multiplying its state with one matrix a token. I − β k kᵀ with β ≤ 1 only shrinks the state; with β = 2 it is a
reflection, which swaps two things (Grazzi et al. 2024, "Unlocking state-tracking in linear RNNs through negative
eigenvalues"). n_h of them in one token make any permutation of n_h + 1 things (Siems et al. 2025, "DeltaProduct"): S2
needs one, S3 two, S5 four. What only nearly does it is found out by rows longer than those trained on.
"""

from collections.abc import Sequence
from functools import cache
from itertools import permutations

import torch
from torch import Generator, Tensor

from .batch import NOT_ASKED, Batch, draw, nothing_asked


@cache
def elements(m: int) -> list[tuple[int, ...]]:
    """Sm: what is at each of m places. The first leaves all where they are."""
    return list(permutations(range(m)))


def number(element: tuple[int, ...]) -> int:
    """Which element of its group it is."""
    return elements(len(element)).index(element)


@cache
def products(m: int) -> Tensor:
    """[m!, m!]: the number of the element that is first a, then b."""
    numbers = {element: i for i, element in enumerate(elements(m))}
    return torch.tensor([[numbers[tuple(a[i] for i in b)] for b in elements(m)] for a in elements(m)])


def words(generator: Generator, n: int, m: int, length: int, *, moves: Sequence[int] | None = None) -> Batch:
    """n rows of a start and so many elements of Sm, of the given numbers or all of them."""
    order = len(elements(m))
    some = torch.arange(order) if moves is None else torch.tensor(moves)
    drawn = some[draw(generator, n, length, 0, len(some))]
    tokens = torch.cat([torch.full((n, 1), order), drawn], 1)  # the start comes after the elements
    targets, so_far = nothing_asked(tokens), torch.zeros(n, dtype=torch.int64)
    for t, move in enumerate(drawn.T, 1):
        targets[:, t] = so_far = products(m)[so_far, move]
    return Batch(tokens, targets)


def second_half(batch: Batch) -> Batch:
    """Asked for there only, where a row of half the length did not reach."""
    targets = batch.targets.clone()
    targets[:, : batch.tokens.shape[1] // 2 + 1] = NOT_ASKED
    return Batch(batch.tokens, targets)
