"""What a run has done so far, and what that says about the next step."""

import math
from dataclasses import dataclass, replace
from statistics import median

from .recipe import Recipe
from .step import Step

RECENT = 100  # steps whose gradients a spike is compared with
FEW = 20  # steps with which nothing can be compared yet


@dataclass(frozen=True)
class Counters:
    step: int = 0  # steps done or skipped; the data's position, too
    updates: int = 0  # steps done
    nonfinite: int = 0  # steps skipped because loss or gradient were not finite
    nonfinite_in_a_row: int = 0
    spikes: int = 0  # steps skipped because the gradient was too large
    norms: tuple[float, ...] = ()  # of the last gradients, where spikes are skipped


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
