"""The yardstick of speed, everywhere in this package: what torch.mm of square matrices reaches, now and here."""

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

SIZE = 2048  # rows and columns
GPU_SIZE = 8192  # a GPU is not busy with less


def product(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Callable[[], object]:
    """The product that is timed, as a call without arguments."""
    n = size_on(device)
    a, b, out = (torch.randn(n, n, device=device).to(dtype) for _ in range(3))
    return partial(torch.mm, a, b, out=out)


def rate(seconds: float, device: torch.device | str = "cpu") -> float:
    """FLOP/s of a product that took so long."""
    return 2 * size_on(device) ** 3 / seconds


def matmul_flops(dtype: torch.dtype, device: torch.device | str = "cpu", seconds: float = 0.2) -> float:
    """FLOP/s that torch.mm reaches: the best of at least three products, made for so many seconds after a first one."""
    call, times, start = product(dtype, device), [], perf_counter()
    timed(call, device)
    while len(times) < 3 or perf_counter() - start < seconds:
        times.append(timed(call, device))
    return rate(min(times), device)


def timed(call: Callable[[], object], device: torch.device | str = "cpu") -> float:
    on_gpu = torch.device(device).type == "cuda"
    start = perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize(device)
    return perf_counter() - start


def size_on(device: torch.device | str) -> int:
    return GPU_SIZE if torch.device(device).type == "cuda" else SIZE
