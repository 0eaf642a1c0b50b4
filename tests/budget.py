"""The error budget as tests use it: gated_deltanet/bench/budget.py says what it is."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from gated_deltanet.bench.accuracy import cast, outputs_and_grads, relative_error
from gated_deltanet.bench.budget import Yardstick
from gated_deltanet.ops.checks import refusal

__all__ = [
    "assert_within_budget",
    "cast",
    "operator",
    "outputs_and_grads",
    "relative_error",
    "skip_if_refused",
    "takes",
]


def assert_within_budget(
    form: Callable, recurrence: Callable, inputs: Mapping[str, Any], gates: Iterable[str] = (), neighbours: int = 0
) -> None:
    """form and recurrence: the same op, called with `inputs` by name. gates: inputs whose gradients may err 10 ×.

    neighbours: some, where inputs are drawn, so that a sum may happen to cancel.
    """
    measure = Yardstick(recurrence, inputs, gates, neighbours=neighbours)
    misses = measure.misses(outputs_and_grads(form, inputs))
    assert not misses, "; ".join(map(str, misses))


def operator(op: str, form: str) -> torch._ops.OpOverload:
    """The operator behind an op's form, for torch.library.opcheck."""
    return getattr(torch.ops.gdn, f"{op}_{form}".replace("-", "_")).default


def takes(backend: str, dtype: torch.dtype) -> bool:
    """Whether operands of this dtype can be given to the backend here."""
    return refusal(backend, torch.empty(0, dtype=dtype)) is None


def skip_if_refused(backend: str, dtype: torch.dtype) -> None:
    if not takes(backend, dtype):
        pytest.skip(f"backend {backend} {refusal(backend, torch.empty(0, dtype=dtype))}")
