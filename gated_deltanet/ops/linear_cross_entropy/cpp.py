"""The cross entropy of a linear layer on blocks of tokens whose logits a native kernel reads (csrc/cross_entropy.cpp).

Of a sum of losses every token has the same gradient, so `total` makes the gradients of x and weight while it has the
logits, and backward only scales them: three products instead of four. `losses` cannot, and makes the logits again.
"""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous, operator
from .blocked import Gradients, blocks, most_tokens

TOKENS = 512  # of one block: with fewer products are slow, the logits of more leave the cache
TOTAL_SCHEMA = "(Tensor x, Tensor weight, Tensor targets, int ignore_index, bool training) -> (Tensor, Tensor, Tensor)"


class CrossEntropy(ctypes.Structure):
    """The arguments of cross_entropy, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "V", "threads", "bfloat16")),
        *((name, c_void_p) for name in ("logits", "targets", "losses", "dlosses")),
    )


def block_size(V: int) -> int:
    """Tokens. They may have twice the logits of `blocked`, which holds their softmax and its gradient besides."""
    return min(TOKENS, 2 * most_tokens(V))


def of_rows(logits: Tensor, targets: Tensor, dlosses: Tensor | None = None) -> Tensor:
    """The losses: [rows]. With their gradients the logits, [rows, V], become their own gradient, in place."""
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    arguments = CrossEntropy(*logits.shape, torch.get_num_threads(), logits.dtype == torch.bfloat16)
    given = {} if dlosses is None else {"dlosses": dlosses}
    native.point(arguments, logits=logits, targets=targets, losses=losses, **given)
    native.run("cross_entropy", arguments)
    return losses


def forward(x, weight, targets, ignore_index):
    losses = x.new_zeros(len(x), dtype=torch.float32)
    for tokens in blocks(targets, ignore_index, block_size(len(weight))):
        losses[tokens] = of_rows(x[tokens] @ weight.mT, targets[tokens])
    return losses


def backward(grads, x, weight, targets, ignore_index):
    _, (dx, dweight) = differentiated(x, weight, targets, ignore_index, grads[0])
    return dx, dweight.to(weight.dtype)


def differentiated(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, dlosses: Tensor
) -> tuple[Tensor, Gradients]:
    """The losses, and what their gradients are for x and weight."""
    losses, gradients = torch.zeros_like(dlosses), Gradients.zero(x, weight)
    for tokens in blocks(targets, ignore_index, block_size(len(weight))):
        x_ = x[tokens]
        logits = x_ @ weight.mT
        losses[tokens] = of_rows(logits, targets[tokens], dlosses[tokens])
        gradients.add(tokens, logits, x_, weight)
    return losses, gradients


def total(x, weight, targets, ignore_index):
    """The sum of the losses."""
    training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return TOTAL(x, weight, targets, ignore_index, training)[0]


def total_forward(x, weight, targets, ignore_index, training):
    """The sum; in training also its gradients, weight's in float32."""
    if not training:
        return forward(x, weight, targets, ignore_index).sum(), x.new_empty(0), x.new_empty(0)
    ones = x.new_ones(len(x), dtype=torch.float32)
    losses, gradients = differentiated(x, weight, targets, ignore_index, ones)
    return losses.sum(), *gradients


def total_fake(x, weight, targets, ignore_index, training):
    total, dweight = x.new_empty((), dtype=torch.float32), x.new_empty(weight.shape, dtype=torch.float32)
    return (total, empty_contiguous(x), dweight) if training else (total, x.new_empty(0), x.new_empty(0))


def total_backward(grads, x, weight, targets, ignore_index, training):
    dtotal, dx, dweight = grads
    if not training:  # nothing was kept
        dx, dweight = total_forward(x, weight, targets, ignore_index, True)[1:]
    return dx * dtotal, (dweight * dtotal).to(weight.dtype)


TOTAL = operator("linear_cross_entropy_total_cpp", TOTAL_SCHEMA, total_forward, total_fake, total_backward, keeps=2)
