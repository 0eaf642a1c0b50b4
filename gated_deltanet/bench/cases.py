"""One realistic call of every op, for measuring accuracy and speed; and calls of the gated delta rule to time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from gated_deltanet import ops

Inputs = Mapping[str, Tensor]
Call = Callable[[], object]  # its inputs filled in
RESET = 256  # decoding steps, a multiple of the tokens that are decoded


class Case(NamedTuple):
    """A call of `ops.<op>(**inputs, **options)`. `title` tells apart several cases of one op."""

    title: str
    op: str
    inputs: dict[str, Any]
    options: dict[str, Any] = {}  # noqa: RUF012 never changed

    def form(self, backend: str) -> Callable:
        return partial(getattr(ops, self.op), backend=backend, **self.options)


def gated_delta_rule(B: int = 1, L: int = 512, H: int = 2, d_k: int = 64, d_v: int = 64, seed: int = 0) -> Case:
    """Unit keys, queries scaled as in a layer, a memory of some twenty tokens."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    inputs = {
        "q": normalize(normal(B, L, H, d_k), dim=-1) * d_k**-0.5,
        "k": normalize(normal(B, L, H, d_k), dim=-1),
        "v": normal(B, L, H, d_v),
        "log_alpha": logsigmoid(normal(B, L, H) + 3),
        "beta": normal(B, L, H).sigmoid(),
        "state": normal(B, H, d_k, d_v),
    }
    return Case("gated_delta_rule", "gated_delta_rule", inputs)


def every_op(L: int = 512, seed: int = 0) -> list[Case]:
    """B = 1, H = 2 heads of 64, L tokens; each op as its layer would call it."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    rule = gated_delta_rule(L=L, seed=seed)
    q, k, v, log_alpha, beta, state = rule.inputs.values()
    linear = {"q": q, "k": k, "v": v, "state": state}
    delta = {"q": q, "k": k, "v": v, "log_alpha": None, "beta": beta, "state": state}
    raw = {n: normal(x.shape) for n, x in (("q", q), ("k", k), ("v", v), ("a", beta), ("b", beta))}
    mix = raw | {"A_log": normal(2), "dt_bias": normal(2) - 3, "state": state}
    scan = {"x": normal(1, L, 32), "dt": softplus(normal(1, L, 32) - 3), "A": -normal(32, 16).exp()}
    scan |= {"B": normal(1, L, 16), "C": normal(1, L, 16), "state": normal(1, 32, 16)}
    conv = {"x": normal(1, L, 128), "weight": normal(128, 4) / 2, "state": normal(1, 3, 128)}
    norm = {"x": v, "gate": normal(v.shape), "weight": 1 + normal(64) / 10}
    mlp = {"gate": normal(1, L, 192), "up": normal(1, L, 192)}
    head = {"x": normal(L, 64), "weight": normal(1000, 64) / 8, "targets": torch.arange(L) * 7 % 1000}
    return [
        rule,
        Case("gated_delta_rule, α = 1", "gated_delta_rule", delta),
        Case("gated_delta_mix", "gated_delta_mix", mix),
        Case("linear_attention, α = 1", "linear_attention", linear),
        Case("linear_attention, per token", "linear_attention", linear | {"log_alpha": log_alpha}),
        Case("linear_attention, per key", "linear_attention", linear | {"log_alpha": logsigmoid(k + 3)}),
        Case("selective_scan", "selective_scan", scan),
        Case("attention", "attention", {"q": q * 64, "k": k, "v": v}),
        Case("attention, window 100", "attention", {"q": q * 64, "k": k, "v": v}, {"window": 100}),
        Case("short_conv", "short_conv", conv),
        Case("gated_rms_norm", "gated_rms_norm", norm),
        Case("swiglu", "swiglu", mlp),
        Case("linear_cross_entropy", "linear_cross_entropy", head),
        Case("linear", "linear", {"x": normal(L, 70), "weight": normal(50, 70) / 8, "bias": normal(50)}),
    ]


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
