"""The gated delta rule on what leaves a layer's projections: L2 norm, scale, gates and rule in one."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..gated_delta_rule import BACKENDS as RULES
from ..gated_delta_rule import Operands, can_step_on_gpu, choose, cpp, cpp_recurrent, gated_delta_rule_step_
from ..gated_rms_norm import gated_rms_norm
from ..launches import deferred
from ..library import plain
from ..prepared import prepared
from .reference import EPS, gates, unit_keys

Form = Callable[..., tuple[Tensor, Tensor]]  # form(*operands)
step_on_gpu = deferred("gated_deltanet.ops.gated_delta_rule.triton_steps", "mix_step")


def _with_unit_keys(rule: Form, unit_keys: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = unit_keys) -> Form:
    def form(q, k, v, log_alpha, beta, state, cu_seqlens):
        return rule(*unit_keys(q, k), v, log_alpha, beta, state, cu_seqlens)

    return form


def unit_keys_on_gpu(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`unit_keys` by the kernels of the RMS norm, in one launch each: x / √(‖x‖² + EPS) is the norm over √d."""
    d = q.shape[-1]
    weights = (q.new_full((d,), scale, dtype=torch.float32) for scale in (1 / d, d**-0.5))
    norms = (gated_rms_norm(x, None, w, eps=EPS / d, backend="triton") for x, w in zip((q, k), weights, strict=True))
    q, k = norms
    return q, k


BACKENDS = {name: _with_unit_keys(rule) for name, rule in RULES.items()}
BACKENDS |= {"cpp": partial(cpp.rule, normalise=True), "cpp-recurrent": partial(cpp_recurrent.rule, normalise=True)}
BACKENDS |= {name: _with_unit_keys(RULES[name], unit_keys_on_gpu) for name in ("triton", "triton-recurrent")}
BACKENDS |= {"fla": partial(RULES["fla"], normalise=True)}


class Inputs(NamedTuple):
    """What `gated_delta_mix` is given."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor
    A_log: Tensor
    dt_bias: Tensor
    state: Tensor | None
    beta_max: float
    cu_seqlens: Tensor | None
    backend: str


class StepInputs(NamedTuple):
    """What `gated_delta_mix_step_` is given."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor
    A_log: Tensor
    dt_bias: Tensor
    state: Tensor
    beta_max: float


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
    return _mix(Inputs(q, k, v, a, b, A_log, dt_bias, state, beta_max, cu_seqlens, backend))


@prepared
def _mix(x: Inputs) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    one_token = isinstance(x.q, Tensor) and x.q.shape[1:2] == (1,) and x.cu_seqlens is None
    if not (one_token and isinstance(x.state, Tensor)):
        return _by_form
    if x.backend == "auto" and can_step_on_gpu(*x[:8]):
        _checked(x)
        return _token_on_gpu
    if not plain(*x) or _checked(x)[0] is not BACKENDS["cpp-recurrent"]:
        return _by_form
    step = cpp_recurrent.prepare_step(x.q, x.v, x.state, normalise=True)

    def run(x: Inputs) -> tuple[Tensor, Tensor]:
        assert x.state is not None  # as in the first call of this layout
        last_state = torch.empty_like(x.state)
        log_alpha, beta = gates(x.a, x.b, x.A_log, x.dt_bias, x.beta_max, last_state.dtype)
        o = step.run(x.q, x.k, x.v, log_alpha, beta, x.state, last_state)
        return _by_form(x) if o is None else (o, last_state)  # _by_form says what gate is NaN

    return run


def _token_on_gpu(x: Inputs) -> tuple[Tensor, Tensor]:
    assert x.state is not None  # as in the first call of this layout
    last_state = torch.empty_like(x.state)
    operands = (y.contiguous() for y in x[:7] if isinstance(y, Tensor))
    return step_on_gpu(*operands, x.beta_max, x.state, last_state), last_state


def _by_form(x: Inputs) -> tuple[Tensor, Tensor]:
    form, operands = _checked(x)
    return form(*operands)


def _checked(x: Inputs) -> tuple[Form, Operands]:
    """The form to run, and what it takes."""
    op = "gated_delta_mix"
    sizes, log_alpha, beta = _check(op, x, tokens="B L")
    sizes["N"] = checks.check_cu_seqlens(op, x.cu_seqlens, x.q)
    state = checks.check_state(op, x.state, "N H_v d_k d_v", sizes, like=x.q)
    return choose(op, BACKENDS, x.backend, x.q), Operands(x.q, x.k, x.v, log_alpha, beta, state, x.cu_seqlens)


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
    return _step_(StepInputs(q, k, v, a, b, A_log, dt_bias, state, beta_max))


@prepared
def _step_(x: StepInputs) -> Callable[[StepInputs], Tensor]:
    op = "gated_delta_mix_step_"
    sizes, log_alpha, beta = _check(op, x, tokens="N")
    checks.check_step_state(op, x.state, "N H_v d_k d_v", sizes, like=x.q)
    checks.check_no_grad(op, x.q, x.k, x.v, x.a, x.b, x.A_log, x.dt_bias, x.state)
    if can_step_on_gpu(*x[:8]):
        return lambda x: step_on_gpu(*(y.contiguous() for y in x[:7]), x.beta_max, x.state, x.state)
    if not cpp_recurrent.can_step(x.q, x.k, x.v, log_alpha, beta, x.state):
        return _composed_step_
    step = cpp_recurrent.prepare_step(x.q, x.v, x.state, normalise=True)

    def run(x: StepInputs) -> Tensor:
        log_alpha, beta = gates(x.a, x.b, x.A_log, x.dt_bias, x.beta_max, x.state.dtype)
        q, k, v = x.q.contiguous(), x.k.contiguous(), x.v.contiguous()
        o = step.run(q, k, v, log_alpha.contiguous(), beta.contiguous(), x.state, x.state)
        return _composed_step_(x) if o is None else o  # which says what gate is NaN

    return run


def _composed_step_(x: StepInputs) -> Tensor:
    _, log_alpha, beta = _check("gated_delta_mix_step_", x, tokens="N")
    return gated_delta_rule_step_(*unit_keys(x.q, x.k), x.v, log_alpha, beta, x.state)


def _check(op: str, x: Inputs | StepInputs, tokens: str) -> tuple[dict[str, int], Tensor, Tensor]:
    """Sizes by axis name, log_alpha and beta. tokens: the axes before the heads."""
    sizes = checks.check_shapes(
        op,
        q=(x.q, f"{tokens} H d_k"),
        k=(x.k, f"{tokens} H d_k"),
        v=(x.v, f"{tokens} H_v d_v"),
        a=(x.a, f"{tokens} H_v"),
        b=(x.b, f"{tokens} H_v"),
        A_log=(x.A_log, "H_v"),
        dt_bias=(x.dt_bias, "H_v"),
    )
    checks.check_groups(op, sizes["H"], sizes["H_v"])
    dtype = checks.check_floats(op, q=x.q, k=x.k, v=x.v)
    checks.check_gates(op, a=x.a, b=x.b, A_log=x.A_log, dt_bias=x.dt_bias)
    checks.check_number(op, "beta_max", x.beta_max, above=0, most=2)
    log_alpha, beta = gates(x.a, x.b, x.A_log, x.dt_bias, x.beta_max, dtype)
    checks.check_gates(op, log_alpha=log_alpha)  # where infinities met
    return sizes, log_alpha, beta
