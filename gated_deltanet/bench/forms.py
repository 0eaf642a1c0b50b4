"""The forms of the gated delta rule side by side: how exact and how fast each is on this machine."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gated_deltanet import ops

from .accuracy import errors, is_float
from .cases import Case, gated_delta_rule
from .timing import best_seconds


def measure(L: int, H: int = 4, d: int = 64, rounds: int = 3, track: Callable = iter) -> list[dict[str, Any]]:
    """A row a form: errors against float64, and µs per token and head forward and with backward."""
    case = gated_delta_rule(L=L, H=H, d_k=d, d_v=d)
    forms = ops.usable("gated_delta_rule")
    turns = {(form, backward): partial(run, case, form, backward) for form in forms for backward in (False, True)}
    best = best_seconds(turns, rounds, track)
    return [row(case, form, *(best[form, backward] / (L * H) * 1e6 for backward in (False, True))) for form in forms]


def row(case: Case, form: str, forward_us: float, forward_backward_us: float) -> dict[str, Any]:
    found = errors(case, form, torch.float32)
    return {
        "form": form,
        "output_error": found["output 0"],
        "gradient_error": max(found[n] for n in ("dq", "dk", "dv")),
        "gate_gradient_error": max(found[n] for n in ("dlog_alpha", "dbeta")),
        "forward_us": forward_us,
        "forward_backward_us": forward_backward_us,
    }


def run(case: Case, form: str, backward: bool) -> None:
    inputs = {n: x.detach().requires_grad_(backward and is_float(x)) for n, x in case.inputs.items()}
    o, S = case.form(form)(**inputs)
    if backward:
        (o.sum() + S.sum()).backward()
