"""From what a layer projects to what the gated delta rule takes: norms, scale and gates, plainly composed."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

EPS = 1e-6


def unit(x: Tensor) -> Tensor:
    """x / √(‖x‖² + EPS) over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def log_decay(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """log α = −exp(A_log) softplus(a + dt_bias), Mamba2's parameterisation. a: [..., H_v], A_log, dt_bias: [H_v]."""
    return A_log.exp() * logsigmoid(-(a + dt_bias))


def unit_keys(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q / ‖q‖ · d_k^−½ and k / ‖k‖, computed in float32 at least; they come back in their own dtypes."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return (unit(q.to(dtype)) * q.shape[-1] ** -0.5).to(q.dtype), unit(k.to(dtype)).to(k.dtype)


def gates(
    a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, beta_max: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """log_alpha and beta of the rule, in `dtype`.

    By exp and logsigmoid: torch's sigmoid and softplus round differently at the end of a row, so cutting would show.
    """
    log_alpha = log_decay(a.to(dtype), A_log.to(dtype), dt_bias.to(dtype))
    return log_alpha, beta_max * logsigmoid(b.to(dtype)).exp()
