"""Chunkwise forms: tokens laid out as chunks, run over in order a segment at a time, backward by recomputation.

An op gives one function, `segment(*chunks, *shared, S) -> (o, S)`: n chunks of N sequences, [n, N, H, C, …], from
the state S [N, …] before them. Here is everything else: sequences of unequal length, the walk over the segments,
and its reverse, which keeps S at each segment's start and recomputes the rest under `torch.func.vjp`.
Memory is therefore linear in the length, with only one segment's matrices alive at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Chunks × heads whose matrices are alive at once: few enough for a CPU's cache, enough to fill a GPU.
SEGMENT_ON_CPU, SEGMENT_ELSEWHERE = 64, 2048


class Layout(NamedTuple):
    """Where tokens lie as chunks. The j-th chunks of all sequences stand together, longest sequence first."""

    chunk: Tensor  # [tokens] the chunk a token is in
    position: Tensor  # [tokens] its position there
    order: Tensor  # [N] the sequences, longest first
    active: list[int]  # how many sequences have a j-th chunk
    C: int


class Segment(NamedTuple):
    """`n` chunks of each of the `N` longest sequences, the first of them at chunk `first`."""

    first: int
    n: int
    N: int

    def of(self, chunks: Tensor) -> Tensor:
        return chunks[self.first : self.first + self.n * self.N].unflatten(0, (self.n, self.N))


def lay_out(lengths: Tensor, C: int, device: torch.device) -> Layout:
    """lengths: [N] int64 on the CPU."""
    order = lengths.argsort(descending=True, stable=True)
    n_chunks = (lengths + C - 1).div(C, rounding_mode="floor")
    active = (len(lengths) - torch.bincount(n_chunks).cumsum(0))[:-1]
    offset = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    rank = order.argsort().repeat_interleave(lengths)
    j = offset // C
    chunk = (active.cumsum(0) - active)[j] + rank
    return Layout(chunk.to(device), (offset % C).to(device), order.to(device), active.tolist(), C)


def to_chunks(x: Tensor, layout: Layout) -> Tensor:
    """[B, L, H, …] -> [chunks, H, C, …], zero where a chunk is not full."""
    x = x.flatten(0, 1)
    chunks = x.new_zeros(sum(layout.active), x.shape[1], layout.C, *x.shape[2:])
    chunks[layout.chunk, :, layout.position] = x
    return chunks


def to_tokens(chunks: Tensor, layout: Layout, like: Tensor) -> Tensor:
    """[chunks, H, C, …] -> [B, L, H, …], the shape and dtype of `like`."""
    return chunks[layout.chunk, :, layout.position].to(like.dtype).reshape(like.shape)


def segments(layout: Layout, heads: int) -> Iterator[Segment]:
    """Runs of chunks over which no sequence ends, each small enough."""
    limit = SEGMENT_ON_CPU if layout.order.device.type == "cpu" else SEGMENT_ELSEWHERE
    j = first = 0
    while j < len(layout.active):
        N = layout.active[j]
        run = layout.active.count(N)
        for start in range(0, run, step := max(1, limit // max(1, N * heads))):
            n = min(step, run - start)
            yield Segment(first, n, N)
            first += n * N
        j += run


def forward(
    segment: Callable,
    C: int,
    tokens: Sequence[Tensor],
    shared: Sequence[Tensor],
    state: Tensor,
    lengths: Tensor,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """o, of the shape of `like`, and the state after the last token.

    tokens: [B, L, H, …], state: [N, H, …], lengths: [N], the sequences'.
    """
    layout = lay_out(lengths, C, like.device)
    chunks = [to_chunks(x, layout) for x in tokens]
    S = state[layout.order]
    o = []
    for part in segments(layout, state.shape[1]):
        o_part, S[: part.N] = segment(*map(part.of, chunks), *shared, S[: part.N])
        o.append(o_part.flatten(0, 1))
    return to_tokens(torch.cat(o), layout, like) if o else torch.empty_like(like), S[layout.order.argsort()]


def backward(
    segment: Callable,
    C: int,
    grads: Sequence[Tensor],
    tokens: Sequence[Tensor],
    shared: Sequence[Tensor],
    state: Tensor,
    lengths: Tensor,
) -> list[Tensor]:
    """Gradients of tokens, shared and state from those of o and the last state."""
    do, dS = grads
    layout = lay_out(lengths, C, do.device)
    chunks, do = [to_chunks(x, layout) for x in tokens], to_chunks(do, layout)
    dchunks, dshared = [torch.zeros_like(x) for x in chunks], [torch.zeros_like(x) for x in shared]
    parts = list(segments(layout, state.shape[1]))

    S, before = state[layout.order], []
    for i, part in enumerate(parts):
        before.append(S[: part.N].clone())
        if i + 1 < len(parts):
            S[: part.N] = segment(*map(part.of, chunks), *shared, before[i])[1]

    dS = dS[layout.order]
    for part in reversed(parts):
        (o, _), vjp = torch.func.vjp(segment, *map(part.of, chunks), *shared, before.pop())[:2]
        *dinputs, dS[: part.N] = vjp((part.of(do).to(o.dtype), dS[: part.N].clone()))
        for dchunk, dx in zip(dchunks, dinputs[: len(chunks)], strict=True):
            part.of(dchunk).copy_(dx)
        for total, dx in zip(dshared, dinputs[len(chunks) :], strict=True):
            total += dx
    return [*map(to_tokens, dchunks, [layout] * len(chunks), tokens), *dshared, dS[layout.order.argsort()]]
