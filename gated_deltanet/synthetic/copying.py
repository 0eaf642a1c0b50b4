"""Selective copying (Gu and Dao 2023; as in MAD, Poli et al. 2024): keep what matters, in order, and skip the rest.

    .  C  .  .  A  .  B  .  ?  ?  ?
                            C  A  B     the answers

Symbols lie at random places among blanks. Then as many question marks follow, and the model has to give the symbols in
their order. It is never shown its own answers, so it must know how many it has already given.
"""

import torch
from torch import Generator

from .batch import Batch, choose, draw, nothing_asked

SYMBOLS = 16
BLANK, ASK = SYMBOLS, SYMBOLS + 1
VOCAB_SIZE = SYMBOLS + 2


def selective_copy(generator: Generator, n: int, symbols: int, places: int) -> Batch:
    """n rows: so many symbols in so many places, and as many question marks."""
    wanted = draw(generator, n, symbols, 0, SYMBOLS)
    at = choose(generator, n, symbols, places).sort(1).values
    tokens = torch.cat([wanted.new_full((n, places), BLANK).scatter(1, at, wanted), torch.full_like(wanted, ASK)], 1)
    targets = nothing_asked(tokens)
    targets[:, places:] = wanted
    return Batch(tokens, targets)
