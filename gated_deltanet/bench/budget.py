"""The error budget: how far a form may be from the float64 recurrence. One budget for every op (CONTRIBUTING.md)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .accuracy import cast, flatten, is_float, outputs_and_grads

HALF = (torch.bfloat16, torch.float16)
EXPONENTS = ("log_alpha", "A_log")  # operands nothing is multiplied by


class Miss(NamedTuple):
    """A result outside the budget: root mean squares of the error, of what is allowed, and of the exact result."""

    name: str
    error: float
    allowed: float
    size: float

    def __str__(self) -> str:
        relative = [f"{x / self.size:.2g}" if self.size else f"{x:.2g} of 0" for x in (self.error, self.allowed)]
        return f"{self.name}: relative error {relative[0]}, budget {relative[1]}"


@dataclass(frozen=True)
class Yardstick:
    """What the results of one call are measured by.

    recurrence: the op as it is specified, called with `inputs` by name. gates: inputs whose gradients may err 10 ×.
    scale: of the outputs' gradients. The inputs' own values are the oracle's too, so rounding them costs nothing.
    For random calls, which may be ill-conditioned: neighbours, at how many the recurrence is measured again before a
    miss counts; terms, the recurrence without what cancels in it, whose results are as large as the terms of the sums.
    """

    recurrence: Callable
    inputs: Mapping[str, Any]
    gates: Iterable[str] = ()
    scale: float = 1.0
    neighbours: int = 0
    terms: Callable | None = None

    @cached_property
    def oracle(self) -> dict[str, Tensor]:
        return outputs_and_grads(self.recurrence, cast(self.inputs, torch.float64), self.scale)

    @cached_property
    def sizes(self) -> dict[str, float]:
        return {n: rms(x) for n, x in self.oracle.items()}

    @cached_property
    def plain(self) -> dict[str, float]:
        """The errors of the float32 recurrence."""
        return self._errors(self.recurrence, self.inputs)

    @cached_property
    def nearby(self) -> dict[str, float]:
        """Its largest errors when operands and the outputs' gradients are rounded once more: the results' condition."""
        generator = torch.Generator().manual_seed(3)
        of_outputs = next(iter(self._dtypes & set(HALF)), torch.float32)

        def recurrence(**inputs: Any) -> tuple[Tensor, ...]:
            return tuple(rounded(o, of_outputs, generator) for o in flatten(self.recurrence(**inputs)) if is_float(o))

        errors = []
        for _ in range(self.neighbours):
            inputs = {n: rounded(x, x.dtype, generator) if is_float(x) else x for n, x in self.inputs.items()}
            errors.append(self._errors(recurrence, inputs))
        return {name: max((e[name] for e in errors), default=0.0) for name in self.oracle}

    @cached_property
    def floor(self) -> float:
        """What underflow may cost: a product below the smallest normal number may be taken for zero.

        That is an error of `tiny`, which is then multiplied by other operands, and a result sums at most as many of
        these products as the largest operand has numbers.
        """
        operands = {n: x for n, x in self.inputs.items() if is_float(x) and x.numel()}
        double = any(x.dtype == torch.float64 for x in operands.values())
        sizes = [max(1.0, float(x.abs().max())) for n, x in operands.items() if n not in EXPONENTS]
        terms = max((x.numel() for x in operands.values()), default=0)
        tiny = torch.finfo(torch.float64 if double else torch.float32).tiny
        return terms * tiny * prod([max(1.0, self.scale), *sizes])

    @cached_property
    def before_cancelling(self) -> dict[str, float]:
        """The sizes of what the results are sums of, where these cancel."""
        if self.terms is None:
            return dict.fromkeys(self.oracle, 0.0)
        terms = outputs_and_grads(self.terms, cast(self.inputs, torch.float64), self.scale)
        return {n: rms(x) for n, x in terms.items()}

    def misses(self, results: Mapping[str, Tensor]) -> list[Miss]:
        """Of outputs and gradients, by the names of `outputs_and_grads`."""
        found = [Miss(n, error(x, self.oracle[n]), self.allowed(n), self.sizes[n]) for n, x in results.items()]
        found = [m._replace(allowed=self._allowed_at_most(m)) for m in found if not m.error <= m.allowed]
        return [m for m in found if not m.error <= m.allowed]

    def _errors(self, recurrence: Callable, inputs: Mapping[str, Any]) -> dict[str, float]:
        results = outputs_and_grads(recurrence, cast(inputs, torch.float32), self.scale)
        return {n: error(x, self.oracle[n]) for n, x in results.items()}

    @cached_property
    def _dtypes(self) -> set[torch.dtype]:
        return {x.dtype for x in self.inputs.values() if is_float(x)}

    def _level(self, name: str) -> float:
        """The relative error every form may have."""
        if self._dtypes & set(HALF):
            return 1e-2 if name.startswith("d") else 4e-3
        return 1e-12 if torch.float64 in self._dtypes else 8 * torch.finfo(torch.float32).eps

    def _factor(self, name: str) -> int:
        return 10 if name.removeprefix("d") in self.gates else 4

    def allowed(self, name: str) -> float:
        """The root mean square of the error that a form's output or gradient may have."""
        least = self._level(name) * self.sizes[name]
        if self._dtypes & {torch.float64, *HALF}:
            return least + self.floor
        return max(self._factor(name) * self.plain[name], least) + self.floor

    def _allowed_at_most(self, miss: Miss) -> float:
        """Of random calls: whether the result is ill-conditioned, or a small rest of large terms.

        Such a rest is a difference of sums that may err by their level each. Half the factor for outputs in half
        precision, so that well-conditioned ones keep to their level.
        """
        name, factor = miss.name, self._factor(miss.name)
        halved = not name.startswith("d") and bool(self._dtypes & set(HALF))
        ill = (factor / 2 if halved else factor) * self.nearby[name]
        rest = factor / 2 * self._level(name) * self.before_cancelling[name]
        return max(miss.allowed, max(ill, rest) + self.floor)


def rounded(x: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """x moved by up to an eps of float32, which then rounds it, or by half of one of a half precision."""
    eps = torch.finfo(dtype).eps / (2 if dtype in HALF else 1)
    by = eps * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1)
    return (x * (1 + by)).to(torch.promote_types(x.dtype, torch.float32))


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


def error(x: Tensor, oracle: Tensor) -> float:
    """The root mean square of the difference; infinite if x is not finite."""
    if x.shape != oracle.shape:
        raise ValueError(f"error: x is {list(x.shape)}, expected {list(oracle.shape)}, as the oracle is")
    difference = rms(x.double() - oracle)
    return float("inf") if isnan(difference) else difference
