"""Associative recall with keys that are written again: the last value counts.

    A 4  C 2  |  C 5  C 7  C 1  |  A  C
                                   4  1        the answers

Every key is written once, then half of the keys again and again, each time with another value; at the end all are asked
for. A memory that only adds keeps the sum of all values of a key; one that decays forgets the other half of the keys
as well; the delta rule takes away what was stored under this key (table 1).
"""

import torch
from torch import Generator

from .batch import Batch, choose, draw, nothing_asked

KEYS, VALUES = 8, 16  # keys are the tokens 0 … 7, values 8 … 23
VOCAB_SIZE = KEYS + VALUES


def rewritten(generator: Generator, n: int, times: int) -> Batch:
    """n rows of 8 · times + 16 tokens. times: that half of the keys are written, the others once."""
    once = choose(generator, n, KEYS, KEYS)
    again = once[:, ::2].repeat(1, times - 1)
    order = choose(generator, n, again.shape[1], again.shape[1])
    key = torch.cat([once, again.gather(1, order)], 1)
    value = draw(generator, n, key.shape[1], KEYS, VOCAB_SIZE)
    last = value.new_zeros(n, KEYS)
    for place in range(key.shape[1]):
        last = last.scatter(1, key[:, place : place + 1], value[:, place : place + 1])
    asked = choose(generator, n, KEYS, KEYS)
    written = torch.stack([key, value], -1).flatten(1)
    return Batch(torch.cat([written, asked], 1), torch.cat([nothing_asked(written), last.gather(1, asked)], 1))
