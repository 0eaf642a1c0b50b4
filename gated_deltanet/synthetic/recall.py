"""In-context recall with noise (MAD, Poli et al. 2024): pairs that come again, between tokens that mean nothing.

    A 4  x  C 2  y z  A 4  C 2  x  A 4 …
                      4    2       4        the answers

Every row has a dictionary of its own, and shows entries of it again and again. At a key that has been shown before the
model has to give its value. Noise, of tokens that are neither keys nor values, stands between the pairs: to write it
into the state is to spoil what is there.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .batch import NOT_ASKED, Batch, choose, draw, nothing_asked

KEYS, VALUES, NOISE = 8, 8, 8  # in this order
VOCAB_SIZE = KEYS + VALUES + NOISE
NOTHING = -1  # noise is one token where a pair has two: the second place, which will be closed


def noisy_recall(generator: Generator, n: int, pairs: int, noise: int) -> Batch:
    """n rows of 2 · pairs + noise tokens."""
    dictionary = draw(generator, n, KEYS, KEYS, KEYS + VALUES)
    key = draw(generator, n, pairs, 0, KEYS)
    value = dictionary.gather(1, key)
    shown = F.one_hot(key, KEYS).cumsum(1).gather(2, key[..., None])[..., 0]  # how often, this time included
    first = draw(generator, n, pairs + noise, KEYS + VALUES, VOCAB_SIZE)  # noise, and then pairs in some places
    nothing, answer = torch.full_like(first, NOTHING), nothing_asked(first)
    at = choose(generator, n, pairs, pairs + noise).sort(1).values
    first, second = first.scatter(1, at, key), nothing.scatter(1, at, value)
    answer = answer.scatter(1, at, torch.where(shown > 1, value, NOT_ASKED))
    tokens, targets = between(first, second), between(answer, nothing_asked(answer))
    kept = (tokens == NOTHING).argsort(dim=1, stable=True)[:, : 2 * pairs + noise]
    return Batch(tokens.gather(1, kept), targets.gather(1, kept))


def between(first: Tensor, second: Tensor) -> Tensor:
    """The columns of both, in turn: [n, k] twice -> [n, 2 k]."""
    return torch.stack([first, second], 2).flatten(1)
