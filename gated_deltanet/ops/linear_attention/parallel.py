"""Linear attention with decay for a whole sequence at once: O = (Q Kᵀ ⊙ Γ) V of section 2.1. For study: O(L²)."""

import torch
from torch import Tensor

from ..decay import decay_mask


def parallel(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """q, k: [B, L, H, d_k], v: [B, L, H_v, d_v], log_alpha: [B, L, H_v, 1 or d_k], S: [B, H_v, d_k, d_v].

    With a decay per key each key has its own Γ.
    """
    if v.shape[1] == 0:
        return torch.zeros_like(v), S
    Q, K = (x.to(S.dtype).repeat_interleave(v.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (q, k))
    V, log_alpha = v.to(S.dtype).transpose(1, 2), log_alpha.transpose(1, 2)
    gamma = log_alpha.double().cumsum(-2).exp().to(S.dtype)  # [B, H, L, 1 or d_k]; an eps of a long sum would show
    Gamma = decay_mask(log_alpha.mT)  # [B, H, 1 or d_k, L, L]
    Q_left, K_right = gamma * Q, Gamma[..., -1, :].mT * K

    scalar = log_alpha.shape[-1] == 1
    P = (Q @ K.mT) * Gamma.squeeze(2) if scalar else torch.einsum("bhik,bhjk,bhkij->bhij", Q, K, Gamma)
    O = Q_left @ S + P @ V
    S = gamma[..., -1, :, None] * S + K_right.mT @ V
    return O.transpose(1, 2).to(v.dtype), S
