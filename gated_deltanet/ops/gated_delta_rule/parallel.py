"""The gated delta rule for a whole sequence at once: section 3.3 with one chunk, and appendix A. For study: O(L²)."""

import torch
from torch import Tensor

from ..decay import decay_mask


def parallel(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """q, k: [B, L, H, d_k], v: [B, L, H_v, d_v], log_alpha, beta: [B, L, H_v], S: [B, H_v, d_k, d_v]."""
    if v.shape[1] == 0:
        return torch.zeros_like(v), S
    Q, K = (x.to(S.dtype).repeat_interleave(v.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (q, k))
    V, log_alpha, beta = v.to(S.dtype).transpose(1, 2), log_alpha.transpose(1, 2), beta.transpose(1, 2)[..., None]
    gamma, Gamma = log_alpha.cumsum(-1).exp()[..., None], decay_mask(log_alpha)  # [B, H, L, 1], [B, H, L, L]
    Q_left, K_right = gamma * Q, Gamma[..., -1, :, None] * K

    A = (beta * (Gamma * (K @ K.mT))).tril(-1)
    I = torch.eye(v.shape[1], dtype=S.dtype, device=S.device)
    U = beta * (V - gamma * (K @ S))
    U = torch.linalg.solve_triangular(I + A, U, upper=False, unitriangular=True)  # Ũ − W S of the UT transform

    O = Q_left @ S + (Gamma * (Q @ K.mT)) @ U  # Γ where the paper prints M: docs/errata.md
    S = gamma[..., -1:, :] * S + K_right.mT @ U
    return O.transpose(1, 2).to(v.dtype), S
