"""How far a memory reaches, and how much of it is used."""

from typing import Any

import torch
from torch import Tensor

from gated_deltanet.layers.mamba import MambaState
from gated_deltanet.ops import KVCache


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


def matrix(state: Any) -> Tensor | None:
    """S of the one sequence in a mixer's state: [H, d_k, d_v]; Mamba's h, [1, d_inner, d_state]; None of attention."""
    if isinstance(state, KVCache):
        return None
    return state.h if isinstance(state, MambaState) else state.S[0]


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
