"""What every task is made of: tokens, and the answers that are asked for."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

NOT_ASKED = -100  # what `CausalLM.loss` ignores


class Batch(NamedTuple):
    tokens: Tensor  # [n, L], int64
    targets: Tensor  # [n, L], int64: the answer to be given after this token, or NOT_ASKED


def choose(generator: Generator, n: int, k: int, of: int) -> Tensor:
    """In each of n rows k different numbers below `of`, in random order: [n, k]."""
    return torch.rand(n, of, generator=generator).argsort(1)[:, :k]


def draw(generator: Generator, n: int, k: int, low: int, high: int) -> Tensor:
    """In each of n rows k numbers from low to high − 1, which may be equal: [n, k]."""
    return torch.randint(low, high, (n, k), generator=generator)


def nothing_asked(tokens: Tensor) -> Tensor:
    """Targets to write the answers into."""
    return torch.full_like(tokens, NOT_ASKED)
