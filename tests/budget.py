"""The error budget: how far a form may be from the float64 recurrence. One budget for every op (CONTRIBUTING.md)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

ZERO = 1e-30  # root mean squares below this count as zero
HALF = (torch.bfloat16, torch.float16)
Inputs = Mapping[str, Any]


def cast(inputs: Inputs, dtype: torch.dtype) -> dict[str, Any]:
    return {n: x.to(dtype) if x is not None and x.is_floating_point() else x for n, x in inputs.items()}


def outputs_and_grads(form: Callable, inputs: Inputs) -> dict[str, Tensor]:
    """Outputs by number, and the gradients, by input name, of a fixed random weighting of the outputs."""
    leaves = {
        n: x.detach().clone().requires_grad_() if x is not None and x.is_floating_point() else x
        for n, x in inputs.items()
    }
    outputs = form(**leaves)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(o.shape, generator=generator).bfloat16().to(o.dtype) for o in outputs]
    wanted = {n: x for n, x in leaves.items() if x is not None and x.requires_grad}
    grads = torch.autograd.grad(outputs, list(wanted.values()), weights, materialize_grads=True)
    results = {f"output {i}": o.detach() for i, o in enumerate(outputs)}
    return results | {f"d{n}": g for n, g in zip(wanted, grads, strict=True)}


def relative_error(x: Tensor, oracle: Tensor) -> float:
    """Root mean square of the difference over that of the oracle."""
    assert x.shape == oracle.shape
    if not x.numel():
        return 0.0
    if not x.isfinite().all():
        return float("inf")
    scale = oracle.double().square().mean().sqrt().clamp(min=ZERO)
    return float((x.double() - oracle.double()).square().mean().sqrt() / scale)


def assert_within_budget(form: Callable, recurrence: Callable, inputs: Inputs, gates: Iterable[str] = ()) -> None:
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
