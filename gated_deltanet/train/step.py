"""One step: its gradient, AdamW as section 4 has it, and whether the step is made or skipped."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from gated_deltanet.data.rows import Batch

from .parallel import Place, autocast, to_device, total, unsynchronised, whole
from .recipe import Recipe

NEVER_DECAYED = ("A_log", "dt_bias")
RECENT = 100  # steps whose gradients a spike is compared with
FEW = 20  # steps with which nothing can be compared yet


class Step(NamedTuple):
    loss: float  # the mean over the targets of all ranks, in nats
    grad_norm: float  # before it was clipped


def gradient(
    objective: nn.Module, batches: Sequence[Batch], n_targets: int, *, clip: float, dtype: torch.dtype, place: Place
) -> Step:
    """That of the mean loss over all targets of the batch, however it was cut: left in the parameters, clipped.

    batches: this rank's. n_targets: of all ranks.

    DDP and FSDP average over the ranks where we want the sum: hence their number as a factor.
    """
    loss = torch.zeros((), device=place.device, dtype=torch.float64)
    for i, batch in enumerate(batches):
        with unsynchronised(objective) if i + 1 < len(batches) else nullcontext():
            with autocast(place.device, dtype):
                part = objective(*to_device(batch, place.device))
            (part * (place.ranks / n_targets)).backward()
        loss += part.detach()
    norm = whole(clip_grad_norm_(objective.parameters(), clip))
    return Step(float(total(loss, place)) / n_targets, float(norm))


def make_optimizer(model: nn.Module, recipe: Recipe) -> AdamW:
    decayed, others = groups(model, recipe.decay_all)
    return AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.peak_lr,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        fused=True,
    )


def groups(model: nn.Module, decay_all: bool = False) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that decay, and those that do not."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        (decayed if decay_all or decays(name, parameter) else others).append(parameter)
    return decayed, others


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices, short convolutions and embeddings do: these are the head too, in all our presets.

    Norms, biases, D and other vectors do not, nor does what sets how fast a layer forgets, in Mamba a matrix.
    """
    return parameter.ndim > 1 and not name.endswith(NEVER_DECAYED)


def learning_rate(recipe: Recipe, tokens: int) -> float:
    """After so many tokens, those of the step included: linear up, a cosine down."""
    if tokens < recipe.warmup_tokens:
        return recipe.peak_lr * tokens / recipe.warmup_tokens
    done = min(1.0, (tokens - recipe.warmup_tokens) / (recipe.tokens - recipe.warmup_tokens))
    return recipe.peak_lr * (recipe.final_lr + (1 - recipe.final_lr) * (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True)
class Counters:
    """What a run has done so far."""

    step: int = 0  # steps done or skipped; the data's position, too
    updates: int = 0  # steps done
    nonfinite: int = 0  # steps skipped because loss or gradient were not finite
    nonfinite_in_a_row: int = 0
    spikes: int = 0  # steps skipped because the gradient was too large
    norms: tuple[float, ...] = ()  # of the last gradients, where spikes are skipped


def check_counters(counters: Counters) -> None:
    for name, value in asdict(counters).items():
        if name != "norms" and value < 0:
            raise ValueError(f"{name} is {value}, expected 0 or more")


class Diverged(ValueError):
    """Too many steps in a row were not finite."""


def fault(step: Step, counters: Counters, recipe: Recipe) -> str | None:
    """Why a step must not be made: "nonfinite" or "spike"; None: nothing is wrong."""
    if not (math.isfinite(step.loss) and math.isfinite(step.grad_norm)):
        return "nonfinite"
    if recipe.spike and len(counters.norms) >= FEW and step.grad_norm > recipe.spike * median(counters.norms):
        return "spike"
    return None


def counted(counters: Counters, step: Step, why: str | None, recipe: Recipe) -> Counters:
    """The counters after a step that was made, or skipped for a reason."""
    after = replace(counters, step=counters.step + 1)
    if why == "nonfinite":
        return replace(after, nonfinite=after.nonfinite + 1, nonfinite_in_a_row=after.nonfinite_in_a_row + 1)
    if why == "spike":
        return replace(after, spikes=after.spikes + 1, nonfinite_in_a_row=0)
    norms = (*after.norms, step.grad_norm)[-RECENT:] if recipe.spike else ()
    return replace(after, updates=after.updates + 1, nonfinite_in_a_row=0, norms=norms)


def check_diverged(counters: Counters, recipe: Recipe) -> None:
    if counters.nonfinite_in_a_row >= recipe.bad_steps:
        found = f"{counters.nonfinite_in_a_row} steps in a row, up to step {counters.step}"
        advice = f"a lower --peak-lr than {recipe.peak_lr:g}, longer --warmup-tokens, or --dtype float32"
        raise Diverged(f"{found}, had a loss or gradient that is not finite; try {advice}, in a new run")
