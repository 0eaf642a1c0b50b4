"""The cross entropy of a language model's last layer, without its logits."""

import torch
from torch import Tensor

from .. import checks
from ..library import operator
from . import blocked, cpp, reference

SCHEMA = "(Tensor x, Tensor weight, Tensor targets, int ignore_index) -> Tensor"


def _fake(x, weight, targets, ignore_index):
    return x.new_empty(x.shape[0], dtype=checks.accumulator(x))


BACKENDS = {
    "reference": operator("linear_cross_entropy_reference", SCHEMA, reference.forward, _fake),
    "blocked": operator("linear_cross_entropy_blocked", SCHEMA, blocked.forward, _fake, blocked.backward),
    "cpp": operator("linear_cross_entropy_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
}


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """The negative log likelihood of each token's target,

        loss_t = −log softmax(weight x_t)[target_t]

    x: [..., d]. weight: [V, d], in x's dtype. targets: [...], int64 in [0, V), or ignore_index where nothing is asked.
    reduction: "mean" (over the tokens not ignored; 0 with zero gradients if there are none), "sum", or "none".
    backend: "reference" (all logits at once), "blocked" (a bounded number of logits at a time), "cpp" (likewise,
    read by a native kernel, on a CPU, float32 and bfloat16), or "auto": cpp where it can run, else blocked.

    Returns the loss, or with "none" the losses: [...], 0 where ignored; float32, or float64 with float64 inputs.
    """
    op = "linear_cross_entropy"
    axes = " ".join(f"x{i}" for i in range(getattr(x, "ndim", 2) - 1))
    sizes = checks.check_shapes(op, x=(x, f"{axes} d"), weight=(weight, "V d"), targets=(targets, axes))
    checks.check_floats(op, x=x, weight=weight)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction is {checks.shown(reduction)}, expected 'mean', 'sum' or 'none'")
    checks.check_whole(op, "ignore_index", ignore_index)
    _check_targets(op, targets, sizes["V"], ignore_index)
    form = checks.choose_backend(op, BACKENDS, backend, auto="blocked", like=x)
    inputs = (x.reshape(-1, sizes["d"]), weight, targets.flatten(), ignore_index)
    if reduction == "none":
        return form(*inputs).view(targets.shape)
    total = cpp.total(*inputs) if form is BACKENDS["cpp"] else form(*inputs).sum()
    return total if reduction == "sum" else total / (targets != ignore_index).sum().clamp(min=1)


def _check_targets(op: str, targets: Tensor, V: int, ignore_index: int) -> None:
    if targets.dtype != torch.int64:
        raise ValueError(f"{op}: targets is {targets.dtype}, expected torch.int64")
    if checks.values_are_cheap(targets):
        bad = targets[((targets < 0) | (targets >= V)) & (targets != ignore_index)]
        if len(bad):
            raise ValueError(f"{op}: targets holds {int(bad[0])}, expected 0 to {V - 1}, or {ignore_index} to ignore")
