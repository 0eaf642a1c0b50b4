"""Linear attention with decay as the paper's recurrence (section 2.1): the specification of the other forms."""

import torch
from torch import Tensor


def step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One token. q, k: [B, H, d_k], v: [B, H, d_v], log_alpha: [B, H, 1 or d_k], S: [B, H, d_k, d_v]."""
    S = log_alpha.exp()[..., None] * S  # forget
    S = S + torch.einsum("bhk,bhv->bhkv", k, v)  # store v under k
    return torch.einsum("bhk,bhkv->bhv", q, S), S


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens in turn. Value head i reads key head i // (H_v / H).

    q, k: [B, L, H, d_k], v: [B, L, H_v, d_v], log_alpha: [B, L, H_v, 1 or d_k], S: [B, H_v, d_k, d_v].
    """
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    o = []
    tokens = zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v, log_alpha)), strict=True)
    for q_t, k_t, v_t, log_alpha_t in tokens:
        o_t, S = step(q_t, k_t, v_t, log_alpha_t, S)
        o.append(o_t)
    return torch.stack(o, 1).to(v.dtype) if o else torch.zeros_like(v), S
