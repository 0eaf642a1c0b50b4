"""Multi-query associative recall (MQAR, Arora et al. 2023, "Zoology"): remember pairs, then answer for every key.

    A 4  C 2  B 7  …  .  C  .  .  A  B  .  …
                         2        4  7          the answers

First come pairs of a key and a value, then the keys alone, each once and in another order, with blanks between. At a
key the model has to give its value. All pairs must be in the state at once: what does not fit, or was written over
another pair, cannot be told. In Zoology near questions are more frequent than far ones; here all places are alike.
"""

from torch import Generator

from .batch import Batch, choose, draw, nothing_asked

KEYS = 32  # and as many values


def vocab_size(keys: int = KEYS) -> int:
    """Keys are the tokens 0 … keys − 1, then come the values, and last the blank."""
    return 2 * keys + 1


def mqar(generator: Generator, n: int, pairs: int, keys: int = KEYS) -> Batch:
    """n rows of 4 · pairs tokens: half of them pairs, half of them questions and blanks."""
    key, value = choose(generator, n, pairs, keys), draw(generator, n, pairs, keys, 2 * keys)
    tokens = key.new_full((n, 4 * pairs), 2 * keys)
    targets = nothing_asked(tokens)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = key, value
    at = 2 * pairs + choose(generator, n, pairs, 2 * pairs)  # where each key is asked for
    return Batch(tokens.scatter(1, at, key), targets.scatter(1, at, value))
