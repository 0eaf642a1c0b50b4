"""The gated delta rule on what leaves a layer's projections: L2 norm, scale, gates and rule in one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..gated_delta_rule import BACKENDS as RULES
from ..gated_delta_rule import choose, cpp, cpp_recurrent, gated_delta_rule_step_
from ..library import plain
from ..plans import planned
from .reference import gates, unit_keys


def _composed(rule: Callable) -> Callable:
    return lambda q, k, *others: rule(*unit_keys(q, k), *others)


BACKENDS = {name: _composed(rule) for name, rule in RULES.items()}
BACKENDS |= {"cpp": partial(cpp.rule, normalise=True), "cpp-recurrent": partial(cpp_recurrent.rule, normalise=True)}


def gated_delta_mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None = None,
    *,
    beta_max: float = 1.0,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule` of

        q / ‖q‖ · d_k^−½     k / ‖k‖     v     log α = −exp(A_log) softplus(a + dt_bias)     β = beta_max · σ(b)

    q, k: [B, L, H, d_k] and v: [B, L, H_v, d_v] as they leave the short convolutions.
    a, b: [B, L, H_v], the raw projections of the gates. A_log, dt_bias: [H_v], float32.
    beta_max: 2 allows negative eigenvalues. state, cu_seqlens, backend and the results: as in `gated_delta_rule`.
    """
    return _mix(q, k, v, a, b, A_log, dt_bias, state, beta_max, cu_seqlens, backend)


@planned
def _mix(*inputs: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    q, _, v, *_, state, _, cu_seqlens, _ = inputs
    one_token = isinstance(q, Tensor) and q.shape[1:2] == (1,) and cu_seqlens is None and plain(*inputs)
    if not (one_token and isinstance(state, Tensor)) or _checked(*inputs)[0] is not BACKENDS["cpp-recurrent"]:
        return _by_form
    step = cpp_recurrent.step_like(q, v, state, lambda *_: None, normalise=True)

    def run(*inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, *raw, state, beta_max, _, _ = inputs
        last_state = torch.empty_like(state)
        o = step(q, k, v, *gates(*raw, beta_max=beta_max, dtype=state.dtype), state, last_state)
        return _by_form(*inputs) if o is None else (o, last_state)  # _by_form says what is wrong

    return run


def _by_form(*inputs: Any) -> tuple[Tensor, Tensor]:
    form, operands = _checked(*inputs)
    return form(*operands)


def _checked(*inputs: Any) -> tuple[Callable, tuple[Any, ...]]:
    """The form to run, and what it takes."""
    op, (q, k, v, *raw, state, beta_max, cu_seqlens, backend) = "gated_delta_mix", inputs
    sizes, log_alpha, beta = _check(op, q, k, v, *raw, beta_max=beta_max, tokens="B L")
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, q)
    state = checks.check_state(op, state, "N H_v d_k d_v", sizes, like=q)
    return choose(op, BACKENDS, backend, q), (q, k, v, log_alpha, beta, state, cu_seqlens)


def gated_delta_mix_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    *,
    beta_max: float = 1.0,
) -> Tensor:
    """One token of decoding: updates `state` in place and returns o: [N, H_v, d_v]. No gradient.

    q, k: [N, H, d_k], v: [N, H_v, d_v], a, b: [N, H_v], state: [N, H_v, d_k, d_v], as in `gated_delta_mix`.
    """
    return _step_(q, k, v, a, b, A_log, dt_bias, state, beta_max)


@planned
def _step_(*inputs: Any) -> Callable[..., Tensor]:
    op, (q, k, v, *raw, state, beta_max) = "gated_delta_mix_step_", inputs
    sizes, log_alpha, beta = _check(op, q, k, v, *raw, beta_max=beta_max, tokens="N")
    checks.check_step_state(op, state, "N H_v d_k d_v", sizes, like=q)
    checks.check_no_grad(op, q, k, v, *raw, state)
    if not cpp_recurrent.can_step(q, k, v, log_alpha, beta, state):
        return _composed_step_
    step = cpp_recurrent.step_like(q, v, state, lambda *_: None, normalise=True)

    def run(*inputs: Any) -> Tensor:
        q, k, v, *raw, state, beta_max = inputs
        o = step(*(x.contiguous() for x in (q, k, v, *gates(*raw, beta_max=beta_max, dtype=state.dtype))), state)
        return _composed_step_(*inputs) if o is None else o

    return run


def _composed_step_(*inputs: Any) -> Tensor:
    q, k, v, *raw, state, beta_max = inputs
    _, log_alpha, beta = _check("gated_delta_mix_step_", q, k, v, *raw, beta_max=beta_max, tokens="N")
    return gated_delta_rule_step_(*unit_keys(q, k), v, log_alpha, beta, state)


def _check(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    beta_max: float,
    tokens: str,
) -> tuple[dict[str, int], Tensor, Tensor]:
    """Sizes by axis name, log_alpha and beta. tokens: the axes before the heads."""
    sizes = checks.check_shapes(
        op,
        q=(q, f"{tokens} H d_k"),
        k=(k, f"{tokens} H d_k"),
        v=(v, f"{tokens} H_v d_v"),
        a=(a, f"{tokens} H_v"),
        b=(b, f"{tokens} H_v"),
        A_log=(A_log, "H_v"),
        dt_bias=(dt_bias, "H_v"),
    )
    checks.check_groups(op, sizes["H"], sizes["H_v"])
    dtype = checks.check_floats(op, q=q, k=k, v=v)
    checks.check_gates(op, a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    if not 0 < beta_max <= 2:
        raise ValueError(f"{op}: beta_max is {beta_max}, expected more than 0 and at most 2")
    log_alpha, beta = gates(a, b, A_log, dt_bias, beta_max, dtype)
    checks.check_gates(op, log_alpha=log_alpha)  # where infinities met
    return sizes, log_alpha, beta
