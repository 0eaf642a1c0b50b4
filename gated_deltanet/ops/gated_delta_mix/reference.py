"""From what a layer projects to what the gated delta rule takes: norms, scale and gates, plainly composed."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

EPS = 1e-6


def unit(x: Tensor) -> Tensor:
    """x / √(‖x‖² + EPS) over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def log_decay(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """log α = −exp(A_log) softplus(a + dt_bias), Mamba2's parameterisation. a: [..., H_v], A_log, dt_bias: [H_v]."""
    return -A_log.exp() * softplus(a + dt_bias)


def rule_inputs(
    q: Tensor, k: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, beta_max: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, log_alpha and beta of the rule. Computed in `dtype`; q and k come back in their own."""
    q_unit, k_unit = (unit(x.to(dtype)) for x in (q, k))
    log_alpha = log_decay(a.to(dtype), A_log.to(dtype), dt_bias.to(dtype))
    beta = beta_max * b.to(dtype).sigmoid()
    return (q_unit * q.shape[-1] ** -0.5).to(q.dtype), k_unit.to(k.dtype), log_alpha, beta
