"""Table 1: five linear RNNs as online learners. Each row's update is the minimum of its objective over S.

In the paper's orientation, S: [d_v, d_k] (the ops store the transpose), k: [d_k], v: [d_v], alpha, beta: scalars.
A row reads only what it needs: LA neither gate, Mamba2 alpha, Longhorn and DeltaNet beta, Gated DeltaNet both.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class OnlineLearner(NamedTuple):
    """One row: objective(S, S_prev, k, v, alpha, beta) -> scalar, update(S_prev, k, v, alpha, beta) -> S."""

    name: str
    objective: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    update: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def square(x: Tensor) -> Tensor:
    """Squared Frobenius norm."""
    return x.pow(2).sum()


def erase(k: Tensor, beta: Tensor) -> Tensor:
    """The generalized Householder matrix I - beta k kᵀ: [d_k, d_k]."""
    return torch.eye(len(k), dtype=k.dtype, device=k.device) - beta * torch.outer(k, k)


def la_objective(S, S_prev, k, v, alpha, beta):
    return square(S - S_prev) - 2 * torch.dot(S @ k, v)


def la_update(S_prev, k, v, alpha, beta):
    return S_prev + torch.outer(v, k)


def mamba2_objective(S, S_prev, k, v, alpha, beta):
    return square(S - alpha * S_prev) - 2 * torch.dot(S @ k, v)


def mamba2_update(S_prev, k, v, alpha, beta):
    return alpha * S_prev + torch.outer(v, k)


def longhorn_objective(S, S_prev, k, v, alpha, beta):
    return square(S - S_prev) + beta * square(S @ k - v)  # printed with a minus: docs/errata.md


def longhorn_update(S_prev, k, v, alpha, beta):
    epsilon = beta / (1 + beta * torch.dot(k, k))  # epsilon_t: every term takes its own step's
    return S_prev @ erase(k, epsilon) + epsilon * torch.outer(v, k)


def deltanet_objective(S, S_prev, k, v, alpha, beta):
    return square(S - S_prev) - 2 * torch.dot(S @ k, beta * (v - S_prev @ k))


def deltanet_update(S_prev, k, v, alpha, beta):
    return S_prev @ erase(k, beta) + beta * torch.outer(v, k)


def gated_deltanet_objective(S, S_prev, k, v, alpha, beta):
    return square(S - alpha * S_prev) - 2 * torch.dot(S @ k, beta * (v - alpha * S_prev @ k))


def gated_deltanet_update(S_prev, k, v, alpha, beta):
    return S_prev @ (alpha * erase(k, beta)) + beta * torch.outer(v, k)


TABLE_1 = (
    OnlineLearner("LA", la_objective, la_update),
    OnlineLearner("Mamba2", mamba2_objective, mamba2_update),
    OnlineLearner("Longhorn", longhorn_objective, longhorn_update),
    OnlineLearner("DeltaNet", deltanet_objective, deltanet_update),
    OnlineLearner("Gated DeltaNet", gated_deltanet_objective, gated_deltanet_update),
)
