"""How fast this machine multiplies matrices: what model FLOPs are measured against (MFU)."""

from time import perf_counter

import torch

SIZES = {"cpu": 1024, "cuda": 8192}


def matmul_flops(dtype: torch.dtype, device: torch.device, rounds: int = 5) -> float:
    """FLOP/s of torch.mm, square, the best of some rounds after one to warm up."""
    n = SIZES.get(device.type, 2048)
    a, b = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(2))
    return 2 * n**3 / min([seconds(a, b) for _ in range(1 + rounds)][1:])


def seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    start = perf_counter()
    torch.mm(a, b)
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
    return perf_counter() - start
