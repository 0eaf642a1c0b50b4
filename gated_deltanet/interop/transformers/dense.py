"""What a layer of transformers has beside its mixer and projections: plain RMS norms and the MLP's gate, by our ops.

Both are short, but torch walks over their tensors once for every operation, forward and backward.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from gated_deltanet.ops import gated_rms_norm, swiglu

from .functions import eps_of, taken

SILUS = ("SiLU", "SiLUActivation")  # torch's module and transformers'
MLP_READS = {"down_proj", "act_fn", "gate_proj", "up_proj"}


def offset_of(cls: type[nn.Module]) -> float | None:
    """What a norm adds to its weight, 0 or 1: seen by trying a small one. None: it is another norm, or may be one."""
    if list(inspect.signature(cls).parameters)[1:] != ["eps"]:  # such as one by groups
        return None
    with torch.device("cpu"), torch.no_grad():
        x, weight = (torch.tensor(each, dtype=torch.float32) for each in ((1, -2, 3, 0.5), (0.5, 2, -1, 1.5)))
        try:
            norm: Any = cls(len(x)).float()
            norm.weight.copy_(weight)
            y, unit = norm(x), x * torch.rsqrt(x.square().mean() + eps_of(norm))
        except (TypeError, AttributeError, RuntimeError):  # it is made otherwise, or has other parts
            return None
        return next((offset for offset in (0.0, 1.0) if torch.allclose(y, unit * (offset + weight))), None)


def norm_forward(own: Callable[..., Tensor], offset: float) -> Callable[..., Tensor]:
    @wraps(own)
    def forward(norm: Any, *args: Tensor, **named: Tensor) -> Tensor:
        (x,) = (*args, *named.values())  # by whatever name it has there
        if not taken(x):
            return own(norm, x)
        weight = norm.weight + offset if offset else norm.weight
        return gated_rms_norm(x, None, weight, eps=eps_of(norm))

    return forward


def is_mlp(cls: type[nn.Module]) -> bool:
    """Whether its forward reads the parts of a gated MLP, and no others."""
    code = getattr(inspect.unwrap(vars(cls).get("forward", object)), "__code__", None)
    return code is not None and set(code.co_names) == MLP_READS and code.co_argcount == 2


def mlp_forward(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For other activations its own."""

    @wraps(own)
    def forward(mlp: Any, *args: Tensor, **named: Tensor) -> Tensor:
        (x,) = (*args, *named.values())
        if not taken(x) or type(mlp.act_fn).__name__ not in SILUS:
            return own(mlp, x)
        gate, up = mlp.gate_proj(x), mlp.up_proj(x)
        same = gate.dtype == up.dtype  # an adapter on one of them may have changed that
        return mlp.down_proj(swiglu(gate, up) if same else mlp.act_fn(gate) * up)

    return forward
