"""Packed rows: N sequences of unequal length in one row, sequence i at tokens cu_seqlens[i] to cu_seqlens[i + 1]."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from .checks import check_cu_seqlens


def each_sequence(
    form: Callable[..., tuple[Tensor, Tensor]], tokens: Sequence[Tensor], state: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """form(*tokens, state), for a batch or for each sequence of a packed row. tokens: [B, L, …], state: [N, …]."""
    if cu_seqlens is None:
        return form(*tokens, state)
    spans = pairwise(cu_seqlens.tolist())
    results = [form(*(x[:, a:b] for x in tokens), state[i : i + 1]) for i, (a, b) in enumerate(spans)]
    o, S = zip(*results, strict=True)
    return torch.cat(o, 1), torch.cat(S)


def sequence_lengths(tokens: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N] int64, on the CPU. tokens: [B, L, …]."""
    B, L = tokens.shape[:2]
    return torch.full((B,), L) if cu_seqlens is None else cu_seqlens.cpu().long().diff()


def sequence_ends(op: str, tokens: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N + 1] int64, on the CPU: sequence n is the tokens ends[n] to ends[n + 1] of all rows. tokens: [B, L, …]."""
    if cu_seqlens is None:
        return even_ends(*tokens.shape[:2])
    check_cu_seqlens(op, cu_seqlens, tokens)  # again: a compiled graph has not looked at its values
    return cu_seqlens.to("cpu", torch.int64).contiguous()


@lru_cache  # a token's decoding should not wait for it
def even_ends(N: int, L: int) -> Tensor:
    """Of N sequences of L tokens."""
    return torch.arange(N + 1) * L
