"""The cross entropy of a linear layer on blocks of tokens: [T, V] logits never exist, backward makes them again."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import accumulator

LOGITS = 2**23  # of one block


def blocks(targets: Tensor, V: int, ignore_index: int) -> tuple[Tensor, ...]:
    """The tokens that count, some at a time."""
    return (targets != ignore_index).nonzero()[:, 0].split(max(1, LOGITS // V))


def widen(x: Tensor) -> Tensor:
    """float16 as float32: its products would overflow. The others as they are."""
    return x.float() if x.dtype == torch.float16 else x


def forward(x, weight, targets, ignore_index):
    x, weight = widen(x), widen(weight)
    losses = torch.zeros(len(x), dtype=accumulator(x), device=x.device)
    for tokens in blocks(targets, len(weight), ignore_index):
        logits = (x[tokens] @ weight.mT).to(losses.dtype)
        losses[tokens] = F.cross_entropy(logits, targets[tokens], reduction="none")
    return losses


def backward(grads, x, weight, targets, ignore_index):
    (dlosses,), dtype, given = grads, accumulator(x), x.dtype
    x, weight = widen(x), widen(weight)
    dx, dweight = torch.zeros_like(x), torch.zeros_like(weight, dtype=dtype)
    for tokens in blocks(targets, len(weight), ignore_index):
        x_ = x[tokens]
        dlogits = (x_ @ weight.mT).to(dtype).softmax(1)
        dlogits[torch.arange(len(tokens), device=x.device), targets[tokens]] -= 1
        dlogits = dlogits.mul_(dlosses[tokens, None]).to(x.dtype)
        dx[tokens] = dlogits @ weight
        if dtype == x.dtype:
            dweight.addmm_(dlogits.mT, x_)
        else:
            dweight += dlogits.mT @ x_
    return dx.to(given), dweight.to(given)
