"""A model reads a text, and what its memory does is written down."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.layers.mixer import Gates
from gated_deltanet.models.model import CausalLM

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
    log_alpha, beta = gates_of(block.mixer, block.mixer_norm(x), carried.state)
    x, state = block(x, carried.state)
    reach, layer = None, LayerTrace(beta=None if beta is None else beta[0])
    if log_alpha is not None:
        alpha = log_alpha[0].exp()
        memory = memory_length(alpha, carried.reach)
        reach, layer = memory[-1], layer._replace(alpha=alpha.mean(-1), memory=memory.mean(-1))
    if (S := matrix_of(state)) is not None:
        layer = layer._replace(norm=norm(S)[None], rank=effective_rank(S)[None])
    return x, Carried(state, reach), layer


def join(pieces: Iterable[LayerTrace]) -> LayerTrace:
    """One layer's pieces, one after the other."""
    return LayerTrace(*(None if parts[0] is None else torch.cat(parts) for parts in zip(*pieces, strict=True)))


def memory_length(alpha: Tensor, before: Tensor | None = None) -> Tensor:
    """m_t = Σ_j Γ_tj, with Γ_tj = α_{j+1} ⋯ α_t: the tokens remembered, each counted by what the decay leaves of it.

    alpha: [L, H, d] -> the same. before: [H, d], m of the token before the first; 0 if None. m is 1 / (1 − α) in the
    long run if α does not change, and t after t tokens if α = 1.
    """
    m, lengths = torch.zeros_like(alpha[0]) if before is None else before, []
    for alpha_t in alpha:
        m = 1 + alpha_t * m
        lengths.append(m)
    return torch.stack(lengths)


def gates_of(mixer: Any, x: Tensor, state: Any = None) -> Gates:
    """Of the tokens x: [B, L, d_model], the mixer's input. state: the mixer's, before them. Attention has none."""
    return mixer.gates(x, state) if hasattr(mixer, "gates") else Gates()


def matrix_of(state: Any) -> Tensor | None:
    """S of the one sequence in a mixer's state: [H, d_k, d_v]. Attention, which keeps tokens, has none."""
    return state.S[0] if hasattr(state, "S") else None


def norm(S: Tensor) -> Tensor:
    """‖S‖_F of each head. S: [H, d_k, d_v] -> [H]."""
    return S.flatten(1).norm(dim=1)


def effective_rank(S: Tensor) -> Tensor:
    """exp(−Σ p log p) with p the singular values over their sum: from 1 to min(d_k, d_v); NaN for S = 0.

    S: [H, d_k, d_v] -> [H].
    """
    sigma = torch.linalg.svdvals(S.float())
    p = sigma / sigma.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1).exp()
