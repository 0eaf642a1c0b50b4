"""The formulas of docs/derivation.md, line by line, for one chunk of one head in float64."""

from functools import partial

import pytest
import torch

from gated_deltanet.ops.decay import decay_mask
from gated_deltanet.ops.gated_delta_rule.reference import recurrence

NAMES = ("Q", "K", "V", "log_alpha", "beta", "S")


def random_chunk(C=7, d_k=5, d_v=3):
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = torch.nn.functional.normalize(normal(C, d_k), dim=-1)
    return normal(C, d_k), K, normal(C, d_v), -normal(C).exp() / 4, 2 * normal(C).sigmoid(), normal(d_k, d_v)


def by_recurrence(Q, K, V, log_alpha, beta, S):
    """The oracle: O [C, d_v] and the last state [d_k, d_v]."""
    tokens = (x[None, :, None] for x in (Q, K, V, log_alpha, beta))
    O, S = recurrence(*tokens, S[None, None])
    return O[0, :, 0], S[0, 0]


def pieces(Q, K, V, log_alpha, beta, S):
    """gamma [C, 1], Gamma [C, C], gamma_C / gamma [C, 1], A [C, C] and U [C, d_v]."""
    gamma, Gamma = log_alpha.cumsum(0).exp()[:, None], decay_mask(log_alpha)
    A = (beta[:, None] * Gamma * (K @ K.T)).tril(-1)
    U = torch.linalg.solve(torch.eye(len(A), dtype=A.dtype) + A, beta[:, None] * (V - gamma * (K @ S)))
    return gamma, Gamma, Gamma[-1, :, None], A, U


def forward(Q, K, V, log_alpha, beta, S):
    gamma, Gamma, to_end, _, U = pieces(Q, K, V, log_alpha, beta, S)
    return gamma * (Q @ S) + (Gamma * (Q @ K.T)) @ U, gamma[-1] * S + K.T @ (to_end * U)


def backward(dO, dS_end, Q, K, V, log_alpha, beta, S):
    """Gradients in the order of NAMES."""
    gamma, Gamma, to_end, A, U = pieces(Q, K, V, log_alpha, beta, S)
    P, beta = Gamma * (Q @ K.T), beta[:, None]
    dU = P.T @ dO + to_end * (K @ dS_end)
    Y = torch.linalg.solve((torch.eye(len(A), dtype=A.dtype) + A).T, dU)
    dV, dA, dP = beta * Y, -(Y @ U.T).tril(-1), (dO @ U.T).tril()
    dS = gamma[-1] * dS_end + Q.T @ (gamma * dO) - K.T @ (gamma * dV)
    dQ = gamma * (dO @ S.T) + (Gamma * dP) @ K
    B = beta * Gamma * dA
    dK = -gamma * (dV @ S.T) + (Gamma * dP).T @ Q + (B + B.T) @ K + to_end * (U @ dS_end.T)
    dbeta = (Y * (V - gamma * (K @ S))).sum(1) + (dA * Gamma * (K @ K.T)).sum(1)
    E = Gamma * (dP * (Q @ K.T) + beta * dA * (K @ K.T))
    E[-1] += (to_end * (K @ dS_end) * U).sum(1)
    e = (gamma * (dO * (Q @ S) - dV * (K @ S))).sum(1)
    e[-1] += gamma[-1, 0] * (dS_end * S).sum()
    rectangles = torch.stack([E[m:, :m].sum() for m in range(len(E))])
    return dQ, dK, dV, rectangles + e.flip(0).cumsum(0).flip(0), dbeta, dS


@pytest.mark.parametrize("reset", [False, True])
def test_forward_formulas_are_the_recurrence(reset):
    chunk = random_chunk()
    chunk[3][3] = -torch.inf if reset else chunk[3][3]
    for got, expected in zip(forward(*chunk), by_recurrence(*chunk), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reset", [False, True])
def test_backward_formulas_are_its_gradient(reset):
    chunk = random_chunk()
    chunk[3][3] = -torch.inf if reset else chunk[3][3]
    leaves = [x.requires_grad_() for x in chunk]
    outputs = by_recurrence(*leaves)
    grads = [torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1)) for x in outputs]
    expected = torch.autograd.grad(outputs, leaves, grads)
    with torch.no_grad():
        got = backward(*grads, *leaves)
    for name, x, y in zip(NAMES, got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11, msg=lambda m, name=name: f"d{name}: {m}")


def test_gated_and_ungated_w_are_one_matrix():
    _, K, _, log_alpha, beta, _ = random_chunk()
    gamma, beta, eye = log_alpha.cumsum(0).exp()[:, None], beta[:, None], torch.eye(7, dtype=torch.float64)
    gated = torch.linalg.solve(eye + (beta * decay_mask(log_alpha) * (K @ K.T)).tril(-1), beta * gamma * K)
    ungated = gamma * torch.linalg.solve(eye + (beta * (K @ K.T)).tril(-1), beta * K)
    torch.testing.assert_close(gated, ungated, rtol=1e-12, atol=1e-12)
