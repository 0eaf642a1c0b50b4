"""The error budget: how far a form may be from the float64 recurrence. One budget for every op (CONTRIBUTING.md)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from gated_deltanet.bench.accuracy import cast, outputs_and_grads, relative_error
from gated_deltanet.ops import native

__all__ = [
    "assert_within_budget",
    "cast",
    "operator",
    "outputs_and_grads",
    "relative_error",
    "skip_if_refused",
    "takes",
]

HALF = (torch.bfloat16, torch.float16)


def assert_within_budget(
    form: Callable, recurrence: Callable, inputs: Mapping[str, Any], gates: Iterable[str] = ()
) -> None:
    """form and recurrence: the same op, called with `inputs` by name. gates: inputs whose gradients may err 10 ×.

    float64 inputs: 1e-12. float32: max(4 × the error of the float32 recurrence, 8 eps). Half: 4e-3, gradients 1e-2.
    The inputs' own values are the oracle's too, so rounding them costs nothing.
    """
    dtypes = {x.dtype for x in inputs.values() if x is not None and x.is_floating_point()}
    oracle = outputs_and_grads(recurrence, cast(inputs, torch.float64))
    plain = outputs_and_grads(recurrence, cast(inputs, torch.float32))
    for name, got in outputs_and_grads(form, inputs).items():
        error = relative_error(got, oracle[name])
        if dtypes & set(HALF):
            allowed = 1e-2 if name.startswith("d") else 4e-3
        elif torch.float64 in dtypes:
            allowed = 1e-12
        else:
            factor = 10 if name.removeprefix("d") in gates else 4
            allowed = max(factor * relative_error(plain[name], oracle[name]), 8 * torch.finfo(torch.float32).eps)
        assert error <= allowed, f"{name}: relative error {error:.2g}, budget {allowed:.2g}"


def operator(op: str, form: str) -> torch._ops.OpOverload:
    """The operator behind an op's form, for torch.library.opcheck."""
    return getattr(torch.ops.gdn, f"{op}_{form}".replace("-", "_")).default


def takes(backend: str, dtype: torch.dtype) -> bool:
    """Whether operands of this dtype can be given to the backend here."""
    return not backend.startswith("cpp") or native.refusal(torch.empty(0, dtype=dtype)) is None


def skip_if_refused(backend: str, dtype: torch.dtype) -> None:
    if not takes(backend, dtype):
        pytest.skip(f"backend {backend} {native.refusal(torch.empty(0, dtype=dtype))}")
