"""What is done to queries and keys before the rule: feature maps and norms (table S.1)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.ops.gated_delta_mix.reference import EPS, unit

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "elu+1": lambda x: F.elu(x) + 1,
}


def l1_unit(x: Tensor) -> Tensor:
    """x over the sum of its absolute values, in the last axis."""
    return x / (x.abs().sum(-1, keepdim=True) + EPS)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {"l2": unit, "l1": l1_unit}


def normalise(x: Tensor, norm: str) -> Tensor:
    """[..., d], computed in float32 at least, in x's dtype."""
    return NORMS[norm](x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
