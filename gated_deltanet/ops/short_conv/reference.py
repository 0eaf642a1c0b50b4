"""The short convolution token by token: the specification every other form is measured against."""

import torch
import torch.nn.functional as F
from torch import Tensor


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, activation: str | None
) -> tuple[Tensor, Tensor]:
    """x: [B, L, D], weight: [D, K], bias: [D], state: [B, K − 1, D]."""
    (L, K), dtype = (x.shape[1], weight.shape[1]), torch.float64 if x.dtype == torch.float64 else torch.float32
    inputs = torch.cat([state, x], 1).to(dtype)
    weight, bias = weight.to(dtype), weight.new_zeros(len(weight), dtype=dtype) if bias is None else bias.to(dtype)
    y = [bias + torch.einsum("bkd,dk->bd", inputs[:, t : t + K], weight) for t in range(L)]
    y = torch.stack(y, 1) if y else x.to(dtype)
    return (F.silu(y) if activation == "silu" else y).to(x.dtype), inputs[:, L:].to(x.dtype)
