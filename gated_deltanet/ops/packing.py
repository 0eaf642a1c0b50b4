"""Packed rows: N sequences of unequal length in one row, sequence i at tokens cu_seqlens[i] to cu_seqlens[i + 1]."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


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
