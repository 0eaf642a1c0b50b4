"""The gated delta rule for a whole sequence at once: section 3.3 with one chunk, and appendix A. For study: O(L²).

In float64 whatever the inputs: rounding an L × L system to float32 moves its solution by more than the recurrence errs.
"""

import torch
from torch import Tensor

from ..decay import decay_mask


def parallel(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """q, k: [B, L, H, d_k], v: [B, L, H_v, d_v], log_alpha, beta: [B, L, H_v], S: [B, H_v, d_k, d_v]."""
    if v.shape[1] == 0:
        return torch.zeros_like(v), S
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    Q, K, V, log_alpha, beta = (x.double().transpose(1, 2) for x in (q, k, v, log_alpha, beta[..., None]))
    gamma, Gamma = log_alpha.cumsum(-1).exp()[..., None], decay_mask(log_alpha)  # [B, H, L, 1], [B, H, L, L]
    Q_left, K_left, K_right, S_0 = gamma * Q, gamma * K, Gamma[..., -1, :, None] * K, S.double()

    A = (beta * (Gamma * (K @ K.mT))).tril(-1)
    I = torch.eye(v.shape[1], dtype=A.dtype, device=A.device)
    U = torch.linalg.solve_triangular(I + A, beta * (V - K_left @ S_0), upper=False, unitriangular=True)  # Ũ − W S

    O = Q_left @ S_0 + (Gamma * (Q @ K.mT)) @ U  # Γ where the paper prints M: docs/errata.md
    S_L = gamma[..., -1:, :] * S_0 + K_right.mT @ U
    return O.transpose(1, 2).to(v.dtype), S_L.to(S.dtype)
