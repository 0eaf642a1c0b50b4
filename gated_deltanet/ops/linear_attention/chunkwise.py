"""Linear attention with decay chunk by chunk (section 2.1): matrix products within chunks, the state between them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import chunks
from ..decay import decay_mask
from ..packing import sequence_lengths

CHUNK, CHUNK_PER_KEY = 64, 16


def segment(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """n chunks of N sequences. What needs no state is done for all of them at once; then S runs over the chunks.

    q, k: [n, N, H, C, d_k], v: [n, N, H_v, C, d_v], log_alpha: [n, N, H_v, C, 1 or d_k], S: [N, H_v, d_k, d_v].
    """
    H = k.shape[2]
    Q, K = (x.to(S.dtype)[:, :, :, None] for x in (q, k))  # [n, N, H, 1, C, d_k]
    V, log_alpha = (x.to(S.dtype).unflatten(2, (H, -1)) for x in (v, log_alpha))
    S = S.unflatten(1, (H, -1))
    gamma = log_alpha.cumsum(-2).exp()  # [n, N, H, H_v/H, C, 1 or d_k]
    P, K_right = (scalar_decay if log_alpha.shape[-1] == 1 else per_key_decay)(Q, K, log_alpha)

    states = []
    for gamma_C, stored in zip(gamma[..., -1, :, None].unbind(), (K_right.mT @ V).unbind(), strict=True):
        states.append(S)
        S = gamma_C * S + stored
    O = (gamma * Q) @ torch.stack(states) + P @ V
    return O.flatten(2, 3), S.flatten(1, 2)


def scalar_decay(Q: Tensor, K: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """P = Q Kᵀ ⊙ Γ, and the keys decayed to the chunk's end. Q, K: [..., C, d_k], log_alpha: [..., C, 1]."""
    Gamma = decay_mask(log_alpha.squeeze(-1))
    return (Q @ K.mT) * Gamma, Gamma[..., -1, :, None] * K


def per_key_decay(Q: Tensor, K: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """The same when Γ differs from key to key: P_ij = Σ_c q_ic k_jc Γ_ij^c. log_alpha: [..., C, d_k].

    By rows: the keys so far decay to token i, k_i joins them, q_i reads them. Decays are only multiplied, so α = 0
    is exact; the two factors q e^G and k e^−G, of one cumulative sum G, would overflow.
    """
    alpha, C = log_alpha.exp(), K.shape[-2]
    K_right, P = K.expand_as(alpha)[..., :0, :], []
    for q_i, k_i, alpha_i in zip(*(x.split(1, -2) for x in (Q, K.expand_as(alpha), alpha)), strict=True):
        K_right = torch.cat([alpha_i * K_right, k_i], -2)
        P.append(pad(q_i @ K_right.mT, (0, C - K_right.shape[-2])))
    return torch.cat(P, -2), K_right


def chunk_size(log_alpha: Tensor) -> int:
    return CHUNK if log_alpha.shape[-1] == 1 else CHUNK_PER_KEY


def forward(q, k, v, log_alpha, state, cu_seqlens):
    C, lengths = chunk_size(log_alpha), sequence_lengths("linear_attention", v, cu_seqlens)
    return chunks.forward(segment, C, (q, k, v, log_alpha), (), state, lengths, like=v)


def backward(grads, q, k, v, log_alpha, state, cu_seqlens):
    C, lengths = chunk_size(log_alpha), sequence_lengths("linear_attention", v, cu_seqlens)
    return chunks.backward(segment, C, grads, (q, k, v, log_alpha), (), state, lengths)
