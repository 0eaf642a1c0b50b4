"""The gated delta rule chunk by chunk (section 3.3): matrix products within chunks, the state between them."""

import torch
from torch import Tensor

from .. import chunks
from ..decay import decay_mask
from ..packing import sequence_lengths


def chunk_size(d_k: int) -> int:
    """About as long as keys are wide, 4 to 64: longer chunks cost more, and their triangular systems round worse."""
    return min(max(1 << (d_k - 1).bit_length(), 4), 64)


def segment(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """n chunks of N sequences. What needs no state is done for all of them at once; then S runs over the chunks.

    q, k: [n, N, H, C, d_k], v: [n, N, H_v, C, d_v], log_alpha, beta: [n, N, H_v, C], S: [N, H_v, d_k, d_v].
    """
    H, d_v = k.shape[2], v.shape[-1]
    Q, K = (x.to(S.dtype)[:, :, :, None] for x in (q, k))  # [n, N, H, 1, C, d_k]
    V, log_alpha, beta = (x.to(S.dtype).unflatten(2, (H, -1)) for x in (v, log_alpha, beta[..., None]))
    S = S.unflatten(1, (H, -1))
    gamma, Gamma = log_alpha.cumsum(-1).exp()[..., None], decay_mask(log_alpha)

    A = (beta * Gamma * (K @ K.mT)).tril(-1)
    I = torch.eye(A.shape[-1], dtype=S.dtype, device=S.device)
    right = torch.cat([beta * V, beta * gamma * K], -1)
    U, W_left = torch.linalg.solve_triangular(I + A, right, upper=False, unitriangular=True).split(
        [d_v, K.shape[-1]], -1
    )
    K_right, gamma_C = Gamma[..., -1, :, None] * K, gamma[..., -1:, :]

    states, corrected = [], []
    for U_i, W_i, K_i, gamma_i in zip(U.unbind(), W_left.unbind(), K_right.mT.unbind(), gamma_C.unbind(), strict=True):
        states.append(S)
        corrected.append(U_i - W_i @ S)
        S = gamma_i * S + K_i @ corrected[-1]
    O = gamma * (Q @ torch.stack(states)) + (Gamma * (Q @ K.mT)) @ torch.stack(corrected)
    return O.flatten(2, 3), S.flatten(1, 2)


def forward(q, k, v, log_alpha, beta, state, cu_seqlens):
    C, lengths = chunk_size(k.shape[-1]), sequence_lengths("gated_delta_rule", v, cu_seqlens)
    return chunks.forward(segment, C, (q, k, v, log_alpha, beta), (), state, lengths, like=v)


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens):
    C, lengths = chunk_size(k.shape[-1]), sequence_lengths("gated_delta_rule", v, cu_seqlens)
    return chunks.backward(segment, C, grads, (q, k, v, log_alpha, beta), (), state, lengths)
