"""The yardstick of this machine: what torch.mm reaches, in the same run as what is compared with it."""

from functools import partial

import torch

from .calls import Call
from .timing import race

SIZE = 2048  # rows and columns


def product(dtype: torch.dtype = torch.float32) -> Call:
    a, b, out = torch.randn(3, SIZE, SIZE).to(dtype).unbind()
    return partial(torch.mm, a, b, out=out)


def rate(seconds: float) -> float:
    """FLOP/s."""
    return 2 * SIZE**3 / seconds


def measure(dtype: torch.dtype, seconds: float = 1.0) -> float:
    """FLOP/s that torch.mm reaches now."""
    return rate(race({"mm": product(dtype)}, seconds)["mm"])
