"""Relatives of the gated delta rule, each a few lines over it."""

import torch
from torch import Tensor

from . import checks
from .gated_delta_rule import gated_delta_rule
from .packing import check_ends


def longhorn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Longhorn (table 1): the delta rule with ε = β / (1 + β kᵀk) for β, the exact minimum of its objective.

    Stable for keys of any length, since ε kᵀk < 1. beta: [B, L, H_v], ≥ 0. The rest is as in `gated_delta_rule`.
    """
    checks.check_shapes("longhorn", k=(k, "B L H d_k"), v=(v, "B L H_v d_v"), beta=(beta, "B L H_v"))
    checks.check_groups("longhorn", k.shape[2], v.shape[2])
    checks.check_gates("longhorn", beta=beta, k=k)
    if checks.values_are_cheap(beta) and bool((beta < 0).any()):
        raise ValueError(f"longhorn: beta holds {beta.min().item():.4g}, expected values ≥ 0")
    beta = beta.to(checks.accumulator(k))
    length2 = k.to(beta.dtype).square().sum(-1).repeat_interleave(v.shape[2] // k.shape[2], 2)
    epsilon = beta / (1 + beta * length2)
    return gated_delta_rule(q, k, v, None, epsilon, state, cu_seqlens=cu_seqlens, backend=backend)


def delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor | None,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """DeltaProduct: n_h gated delta steps a token, so the transition is a product of n_h Householder matrices.

    q: [B, L, H, d_k], log_alpha: [B, L, H_v]; k: [B, L, n_h, H, d_k], v: [B, L, n_h, H_v, d_v], beta: [B, L, n_h, H_v].
    The state decays before the first step of a token and is read after its last. The rest is as in `gated_delta_rule`.
    """
    sizes = checks.check_shapes(
        "delta_product",
        q=(q, "B L H d_k"),
        k=(k, "B L n_h H d_k"),
        v=(v, "B L n_h H_v d_v"),
        log_alpha=(log_alpha, "? B L H_v"),
        beta=(beta, "B L n_h H_v"),
    )
    checks.check_cu_seqlens("delta_product", cu_seqlens, q)
    check_ends("delta_product", q, cu_seqlens)  # here, in tokens: the rule would show micro-steps
    n_h = sizes["n_h"]
    if log_alpha is not None:
        log_alpha = torch.cat([log_alpha[:, :, None], log_alpha.new_zeros(beta[:, :, 1:].shape)], 2).flatten(1, 2)
    q = torch.cat([q.new_zeros(k[:, :, 1:].shape), q[:, :, None]], 2).flatten(1, 2)
    cu_seqlens = None if cu_seqlens is None else cu_seqlens * n_h
    k, v, beta = (x.flatten(1, 2) for x in (k, v, beta))
    o, state = gated_delta_rule(q, k, v, log_alpha, beta, state, cu_seqlens=cu_seqlens, backend=backend)
    return o[:, n_h - 1 :: n_h], state


def signed_beta(b: Tensor) -> Tensor:
    """β = 2 σ(b), in (0, 2): along its unit key a transition's eigenvalue, 1 − β, may then be negative."""
    return 2 * b.sigmoid()
