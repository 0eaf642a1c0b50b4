"""The cross entropy of a linear layer on blocks of tokens: [T, V] logits never exist, backward makes them again."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import accumulator

LOGITS = 2**23  # of one block


def most_tokens(V: int) -> int:
    """Of a block."""
    return max(1, LOGITS // V)


def blocks(targets: Tensor, ignore_index: int, size: int) -> tuple[Tensor, ...]:
    """The tokens that count, so many at a time."""
    return (targets != ignore_index).nonzero()[:, 0].split(size)


def widen(x: Tensor) -> Tensor:
    """float16 as float32: its products would overflow. The others as they are."""
    return x.float() if x.dtype == torch.float16 else x


class Gradients(NamedTuple):
    """Of x, and of weight as a sum over blocks, in the dtype of sums."""

    dx: Tensor
    dweight: Tensor

    @classmethod
    def zero(cls, x: Tensor, weight: Tensor) -> "Gradients":
        return cls(x.new_zeros(x.shape), weight.new_zeros(weight.shape, dtype=accumulator(x)))

    def add(self, tokens: Tensor, dlogits: Tensor, x: Tensor, weight: Tensor) -> None:
        """Those of a block. dlogits: [t, V], x: [t, d]."""
        self.dx[tokens] = dlogits @ weight
        if self.dweight.dtype == x.dtype:
            self.dweight.addmm_(dlogits.mT, x)
        else:
            self.dweight.add_(dlogits.mT @ x)


def forward(x, weight, targets, ignore_index):
    x, weight = widen(x), widen(weight)
    losses = torch.zeros(len(x), dtype=accumulator(x), device=x.device)
    for tokens in blocks(targets, ignore_index, most_tokens(len(weight))):
        logits = (x[tokens] @ weight.mT).to(losses.dtype)
        losses[tokens] = F.cross_entropy(logits, targets[tokens], reduction="none")
    return losses


def backward(grads, x, weight, targets, ignore_index):
    (dlosses,), dtype, given = grads, accumulator(x), x.dtype
    x, weight = widen(x), widen(weight)
    gradients = Gradients.zero(x, weight)
    for tokens in blocks(targets, ignore_index, most_tokens(len(weight))):
        x_ = x[tokens]
        dlogits = (x_ @ weight.mT).to(dtype).softmax(1)
        dlogits[torch.arange(len(tokens), device=x.device), targets[tokens]] -= 1
        gradients.add(tokens, dlogits.mul_(dlosses[tokens, None]).to(x.dtype), x_, weight)
    return tuple(x.to(given) for x in gradients)
