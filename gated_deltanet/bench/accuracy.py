"""How far an op's forms are from its float64 reference: outputs and gradients, as relative root-mean-square errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gated_deltanet import ops

from . import machine
from .cases import Case, every_op

ZERO = 1e-30  # root mean squares below this count as zero


def accuracy(length: int = 512, track: Callable[[Sequence], Iterable[Any]] = iter) -> dict[str, Any]:
    """How far every usable form of every op is from its float64 reference on so many tokens, in float32 and bfloat16.

    A document of plain JSON values: a row for each, with the errors of output, state and worst gradient. track: wraps
    the measurements to show progress.
    """
    if length < 1:
        raise ValueError(f"--length is {length}, expected at least 1")
    rows = [row(*measurement) for measurement in track(measurements(length))]
    return {"machine": machine.describe(), "length": length, "rows": rows}


def cast(inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same inputs with every floating-point tensor in `dtype`."""
    return {n: x.to(dtype) if is_float(x) else x for n, x in inputs.items()}


def round_operands(inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same inputs as a layer in `dtype` would give them: gates, states and their parameters stay float32."""
    kept = {"log_alpha", "beta", "A_log", "dt_bias", "A", "state"} if "v" in inputs or "dt" in inputs else set()
    return dict(inputs) | cast({n: x for n, x in inputs.items() if n not in kept}, dtype)


def outputs_and_grads(form: Callable, inputs: Mapping[str, Any], scale: float = 1.0) -> dict[str, Tensor]:
    """Outputs by number, and the gradients, by input name, of a fixed random weighting of the outputs.

    scale: of the weights. The inputs are used as they lie in memory.
    """
    leaves = {n: x.detach().requires_grad_() if is_float(x) else x for n, x in inputs.items()}
    outputs = [x for x in flatten(form(**leaves)) if is_float(x)]
    generator = torch.Generator().manual_seed(7)
    weights = [(scale * torch.randn(o.shape, generator=generator)).bfloat16().to(o.dtype) for o in outputs]
    wanted = {n: x for n, x in leaves.items() if is_float(x)}
    grads = torch.autograd.grad(outputs, list(wanted.values()), weights, materialize_grads=True)
    results = {f"output {i}": o.detach() for i, o in enumerate(outputs)}
    return results | {f"d{n}": g for n, g in zip(wanted, grads, strict=True)}


def relative_error(x: Tensor, oracle: Tensor) -> float:
    """Root mean square of the difference over that of the oracle."""
    if x.shape != oracle.shape:
        raise ValueError(f"relative_error: x is {list(x.shape)}, expected {list(oracle.shape)}, as the oracle is")
    if not x.numel():
        return 0.0
    if not x.isfinite().all():
        return float("inf")
    scale = oracle.double().square().mean().sqrt().clamp(min=ZERO)
    return float((x.double() - oracle.double()).square().mean().sqrt() / scale)


def errors(case: Case, backend: str, dtype: torch.dtype) -> dict[str, float]:
    """Each output's and gradient's error against the float64 reference on the same, rounded, inputs."""
    inputs = round_operands(case.inputs, dtype)
    oracle = outputs_and_grads(case.form("reference"), cast(inputs, torch.float64))
    return {n: relative_error(x, oracle[n]) for n, x in outputs_and_grads(case.form(backend), inputs).items()}


def measurements(L: int) -> list[tuple[Case, str, torch.dtype]]:
    """Every op, usable form and dtype: the arguments of `row`."""
    dtypes = (torch.float32, torch.bfloat16)
    return [(case, form, dtype) for case in every_op(L) for form in ops.usable(case.op) for dtype in dtypes]


def row(case: Case, backend: str, dtype: torch.dtype) -> dict[str, Any]:
    found = errors(case, backend, dtype)
    worst = max((n for n in found if n.startswith("d")), key=lambda n: found[n])
    return {
        "op": case.title,
        "form": backend,
        "dtype": str(dtype).removeprefix("torch."),
        "output": found["output 0"],
        "state": found.get("output 1"),
        "worst_gradient": found[worst],
        "worst_gradient_of": worst.removeprefix("d"),
    }


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def flatten(x: Any) -> list[Any]:
    return [z for y in x for z in flatten(y)] if isinstance(x, tuple) else [x]
