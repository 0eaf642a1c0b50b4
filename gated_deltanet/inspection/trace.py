"""A model reads a text, and what its memory does is written down."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.models.model import CausalLM

from .gates import gates
from .memory import effective_rank, matrix, memory_length, norm

SAMPLES = 256  # of S, at most: each is a singular value decomposition for every head
Piece = tuple[Tensor, Tensor]  # tokens [P], and the token after each [P]


class LayerTrace(NamedTuple):
    """None is what the layer does not have. Where channels decay on their own, alpha and memory are their means."""

    alpha: Tensor | None = None  # [L, H]
    beta: Tensor | None = None  # [L, H]
    memory: Tensor | None = None  # [L, H]
    norm: Tensor | None = None  # [n, H]
    rank: Tensor | None = None  # [n, H]


class Trace(NamedTuple):
    """Of L tokens, and of S after n of them."""

    surprise: Tensor  # [L]: −log p of each token given those before it; NaN for the first
    expected: Tensor  # [L]: the likeliest token in its place; −1 for the first
    at: Tensor  # [n]: the tokens after which norm and rank are taken
    layers: tuple[LayerTrace, ...]


class Carried(NamedTuple):
    """From piece to piece, for each layer."""

    state: Any = None  # the mixer's
    reach: Tensor | None = None  # [H, d], the memory length of each channel


@torch.no_grad()
def trace(
    model: CausalLM, tokens: Tensor, track: Callable[[Sequence[Piece]], Iterable[Piece]] = lambda pieces: pieces
) -> Trace:
    """tokens: [L], L ≥ 1. They are read in at most SAMPLES pieces, the state carried; track goes over the pieces."""
    size = -(-len(tokens) // SAMPLES)
    pieces = list(zip(tokens.split(size), tokens.roll(-1).split(size), strict=True))
    carried, surprise, expected, readings = [Carried()] * len(model.layers), [], [], []
    for piece, successors in track(pieces):
        x, layers = model.embedding(piece[None]), []
        for i, block in enumerate(model.layers):
            x, carried[i], layer = read(block, x, carried[i])
            layers.append(layer)
        logits = model.logits(model.norm(x[0])).float()
        surprise.append(F.cross_entropy(logits, successors, reduction="none"))
        expected.append(logits.argmax(-1))
        readings.append(layers)
    return Trace(
        F.pad(torch.cat(surprise)[:-1], (1, 0), value=torch.nan),  # the last token has no successor
        F.pad(torch.cat(expected)[:-1], (1, 0), value=-1),
        torch.tensor([len(piece) for piece, _ in pieces]).cumsum(0) - 1,
        tuple(map(join, zip(*readings, strict=True))),
    )


def read(block: Any, x: Tensor, carried: Carried) -> tuple[Tensor, Carried, LayerTrace]:
    """One block reads x: [1, P, d_model]. Of S it is seen what the last of the P tokens leaves: n = 1."""
    log_alpha, beta = gates(block.mixer, block.mixer_norm(x), carried.state)
    x, state = block(x, carried.state)
    reach, layer = None, LayerTrace(beta=None if beta is None else beta[0])
    if log_alpha is not None:
        alpha = log_alpha[0].exp()
        memory = memory_length(alpha, carried.reach)
        reach, layer = memory[-1], layer._replace(alpha=alpha.mean(-1), memory=memory.mean(-1))
    if (S := matrix(state)) is not None:
        layer = layer._replace(norm=norm(S)[None], rank=effective_rank(S)[None])
    return x, Carried(state, reach), layer


def join(pieces: Iterable[LayerTrace]) -> LayerTrace:
    """One layer's pieces, one after the other."""
    return LayerTrace(*(None if parts[0] is None else torch.cat(parts) for parts in zip(*pieces, strict=True)))
