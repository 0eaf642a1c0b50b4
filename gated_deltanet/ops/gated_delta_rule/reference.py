"""The gated delta rule as the paper's recurrence (Eq. 10): the specification every other form is measured against."""

import torch
from torch import Tensor


def step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One token. q, k: [B, H, d_k], v: [B, H, d_v], log_alpha, beta: [B, H], S: [B, H, d_k, d_v]."""
    S = log_alpha.exp()[..., None, None] * S  # forget
    v_old = torch.einsum("bhk,bhkv->bhv", k, S)  # recall what is stored under k
    S = S + torch.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - v_old))  # correct it
    return torch.einsum("bhk,bhkv->bhv", q, S), S


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens in turn. Value head i reads key head i // (H_v / H).

    q, k: [B, L, H, d_k], v: [B, L, H_v, d_v], log_alpha, beta: [B, L, H_v], S: [B, H_v, d_k, d_v].
    """
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    o = []
    tokens = zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v, log_alpha, beta)), strict=True)
    for q_t, k_t, v_t, log_alpha_t, beta_t in tokens:
        o_t, S = step(q_t, k_t, v_t, log_alpha_t, beta_t, S)
        o.append(o_t)
    return torch.stack(o, 1).to(v.dtype) if o else torch.zeros_like(v), S
