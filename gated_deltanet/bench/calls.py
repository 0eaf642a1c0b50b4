"""What is timed: a function of the gated delta rule's arguments, its inputs filled in, as a call without arguments."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Call = Callable[[], object]
RESET = 256  # decoding steps, a multiple of the tokens that are decoded


def forward(rule: Callable[..., Any], inputs: Inputs) -> Call:
    def call() -> object:
        with torch.no_grad():
            return rule(**inputs)

    return call


def forward_backward(rule: Callable[..., Any], inputs: Inputs) -> Call:
    """Outputs and the gradients of every input. rule(**inputs) -> (o, state)."""
    leaves = {n: x.detach().requires_grad_() for n, x in inputs.items()}
    gradients = torch.ones_like(inputs["v"]), torch.ones_like(inputs["state"])
    return lambda: torch.autograd.grad(rule(**leaves), list(leaves.values()), gradients)


def decode(step: Callable[[Any, Tensor], Tensor], tokens: Sequence[Any], state: Tensor, now: Tensor) -> Call:
    """Each call decodes the next of `tokens`, round and round. step(token, now) -> now, in place or not.

    From time to time `now` starts again from `state`: one that only decays ends in denormal numbers, which are slow.
    """
    turn = count()

    @torch.no_grad()
    def call() -> Tensor:
        nonlocal now
        n = next(turn)
        if n % RESET == 0:
            now.copy_(state)
        now = step(tokens[n % len(tokens)], now)
        return now

    return call


def each_token(inputs: Inputs) -> list[dict[str, Tensor]]:
    """The inputs [B, L, …], without the state, as L dictionaries of [B, 1, …]."""
    columns = {n: x.split(1, dim=1) for n, x in inputs.items() if n != "state"}
    return [dict(zip(columns, token, strict=True)) for token in zip(*columns.values(), strict=True)]
