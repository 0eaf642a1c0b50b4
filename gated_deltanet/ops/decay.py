"""The decay mask Γ of a chunk (section 2.1), from sums that never cancel."""

import torch
from torch import Tensor


def segment_sums(x: Tensor) -> Tensor:
    """[..., C] -> [..., C, C]: entry i, j is x_{j+1} + … + x_i, and −inf where i < j.

    Each entry is a sum of its own terms. Differences of one cumulative sum would cancel after a strong decay
    and give NaN at −inf; and the gradient of these sums is a sum over rectangles, which does not cancel either.
    """
    lower = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    sums = torch.where(lower.tril(-1), x[..., :, None], 0).cumsum(-2)
    return torch.where(lower, sums, -torch.inf)


def decay_mask(log_alpha: Tensor) -> Tensor:
    """Γ: [..., C] -> [..., C, C], Γ_ij = α_{j+1} ⋯ α_i for i ≥ j, else 0. Exact at α = 0."""
    return segment_sums(log_alpha).exp()
