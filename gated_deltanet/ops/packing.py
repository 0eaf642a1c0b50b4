"""Packed rows: N sequences of unequal length in one row, sequence i at tokens cu_seqlens[i] to cu_seqlens[i + 1].

The numbers in cu_seqlens are read, and checked, by `read_ends` only: inside the operators, since a compiled graph or a
GPU's caller does not look at values.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from .checks import values_are_cheap


def numbers(x: Tensor) -> list[int]:
    """`x.tolist()` of one axis; one by one inside torch.func, which an operator may run in and torch 2.9 refuses it."""
    return [int(number) for number in x] if peek_interpreter_stack() else x.tolist()


def read_ends(op: str, tokens: Tensor, cu_seqlens: Tensor) -> list[int]:
    """The numbers in cu_seqlens, N + 1. tokens: [1, L, …]."""
    ends, L = numbers(cu_seqlens), tokens.shape[1]
    if ends[0] != 0 or ends[-1] != L or ends != sorted(ends):
        shown = str(ends) if len(ends) <= 12 else f"[{', '.join(map(str, ends[:6]))}, …, {ends[-1]}]"
        raise ValueError(f"{op}: cu_seqlens is {shown}, expected to rise from 0 to the row's length, {L}")
    return ends


def check_ends(op: str, tokens: Tensor, cu_seqlens: Tensor | None) -> None:
    """For what takes cu_seqlens apart with torch's functions: the same check, where values are cheap to see."""
    if cu_seqlens is not None and values_are_cheap(cu_seqlens):
        read_ends(op, tokens, cu_seqlens)


def each_sequence(
    op: str,
    form: Callable[..., tuple[Tensor, Tensor]],
    tokens: Sequence[Tensor],
    state: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """form(*tokens, state), for a batch or for each sequence of a packed row. tokens: [B, L, …], state: [N, …]."""
    if cu_seqlens is None:
        return form(*tokens, state)
    spans = pairwise(read_ends(op, tokens[0], cu_seqlens))
    results = [form(*(x[:, a:b] for x in tokens), state[i : i + 1]) for i, (a, b) in enumerate(spans)]
    o, S = zip(*results, strict=True)
    return torch.cat(o, 1), torch.cat(S)


def sequence_lengths(op: str, tokens: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N] int64, on the CPU. tokens: [B, L, …]."""
    B, L = tokens.shape[:2]
    return torch.full((B,), L) if cu_seqlens is None else sequence_ends(op, tokens, cu_seqlens).diff()


def sequence_ends(op: str, tokens: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[N + 1] int64, on the CPU: sequence n is the tokens ends[n] to ends[n + 1] of all rows. tokens: [B, L, …]."""
    if cu_seqlens is None:
        return even_ends(*tokens.shape[:2])
    read_ends(op, tokens, cu_seqlens)  # or a kernel would go astray
    return cu_seqlens.to("cpu", torch.int64).contiguous()


@lru_cache  # a token's decoding should not wait for it
def even_ends(N: int, L: int) -> Tensor:
    """Of N sequences of L tokens."""
    return torch.arange(N + 1) * L
