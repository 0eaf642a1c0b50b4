"""What launches of kernels in Triton share. Nothing here imports triton: the files that hold kernels do."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import operator
from .packing import check_ends


def deferred(module: str, function: str) -> Callable[..., Any]:
    """A function of a file that imports triton or fla, which is imported when it is first called."""
    return lambda *arguments, **named: getattr(import_module(module), function)(*arguments, **named)


def triton_operator(name: str, schema: str, fake: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The operator gdn::name of a file with kernels in Triton, which has `forward` and `backward`: see `operator`."""
    return operator(name, schema, deferred(module, "forward"), fake, deferred(module, "backward"))


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple, constants: dict, options: dict[str, int]) -> None:
    """On the device of the first argument; nothing, if the grid is empty. options: num_warps, num_stages."""
    if all(grid):
        with torch.cuda.device_of(arguments[0]):
            run(kernel, grid, arguments, constants, options)


def run(kernel: Any, grid: tuple[int, ...], arguments: tuple, constants: dict, options: dict[str, int]) -> None:
    """Apart, so that tools/gpu_code.py can take notes instead."""
    kernel[grid](*arguments, **constants, **options)


def rounded_up(d: int, least: int = 16) -> int:
    """To a power of two; by default one that a tensor core takes."""
    return max(1 << (d - 1).bit_length(), least) if d > 0 else least


def how_many(whole: int, tile: int) -> int:
    """Tiles that cover the whole."""
    return -(-whole // tile)


def rows_of(x: Tensor) -> Tensor:
    """[..., d] -> [rows, d], whose numbers lie side by side in each row; a view where the strides allow it."""
    d = x.shape[-1] if x.ndim else 1
    x = x.reshape(x.shape[:-1].numel(), d)
    return x if d == 1 or x.stride(1) == 1 else x.contiguous()


class Chunks(NamedTuple):
    """Where the chunks of N sequences lie among all tokens. int64, on the tokens' device."""

    ends: Tensor  # [N + 1], sequence n is the tokens ends[n] to ends[n + 1]
    first: Tensor  # [N + 1], and the chunks first[n] to first[n + 1]
    sequence: Tensor  # [chunks], which a chunk is part of
    starts: Tensor  # [chunks], the token it begins with
    lengths: Tensor  # [chunks], how many it holds; 0 for those that are too many


def lay_out(op: str, tokens: Tensor, cu_seqlens: Tensor | None, C: int) -> Chunks:
    """tokens: [B, L, …]. Nothing waits for the device: there are as many chunks as N sequences could need at most."""
    B, L = tokens.shape[:2]
    ends = sequence_ends(op, tokens, cu_seqlens)
    count = B * how_many(L, C) if cu_seqlens is None else L // C + len(ends) - 1
    first = torch.cat([ends.new_zeros(1), ((ends.diff() + C - 1) // C).cumsum(0)]).clamp(0, count)
    chunk = torch.arange(count, device=tokens.device)
    sequence = torch.searchsorted(first, chunk, right=True).sub(1).clamp(max=len(ends) - 2)
    starts = ends[sequence] + (chunk - first[sequence]) * C
    lengths = (ends[sequence + 1] - starts).clamp(0, C)
    return Chunks(ends, first, sequence, starts, lengths)


def sequence_ends(op: str, tokens: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N + 1] int64, on the tokens' device; within them, whatever cu_seqlens holds. tokens: [B, L, …]."""
    B, L = tokens.shape[:2]
    if cu_seqlens is None:
        return torch.arange(B + 1, device=tokens.device) * L
    check_ends(op, tokens, cu_seqlens)
    return cu_seqlens.to(tokens.device, torch.int64).clamp(0, L)
