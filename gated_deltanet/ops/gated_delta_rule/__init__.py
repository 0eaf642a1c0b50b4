"""The gated delta rule, Eq. 10 of the paper."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks, gpu, native
from ..launches import deferred, triton_operator
from ..library import empty_contiguous, operator, without_autocast, without_gradient
from ..packing import each_sequence
from ..prepared import prepared
from . import chunkwise, cpp, cpp_recurrent
from .parallel import parallel
from .reference import recurrence

SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor beta, Tensor state, Tensor? cu_seqlens)"
    " -> (Tensor, Tensor)"
)


def _fake(q, k, v, log_alpha, beta, state, cu_seqlens):
    return empty_contiguous(v), empty_contiguous(state)


def _per_sequence(form):
    def forward(q, k, v, log_alpha, beta, state, cu_seqlens):
        return each_sequence("gated_delta_rule", form, (q, k, v, log_alpha, beta), state, cu_seqlens)

    return forward


BACKENDS = {
    "reference": operator("gated_delta_rule_reference", SCHEMA, _per_sequence(recurrence), _fake),
    "parallel": operator("gated_delta_rule_parallel", SCHEMA, _per_sequence(parallel), _fake),
    "chunkwise": operator("gated_delta_rule_chunkwise", SCHEMA, chunkwise.forward, _fake, chunkwise.backward),
    "cpp": cpp.rule,
    "cpp-recurrent": cpp_recurrent.rule,
    "triton": triton_operator("gated_delta_rule_triton", SCHEMA, _fake, f"{__name__}.triton_rule"),
    "triton-recurrent": triton_operator("gated_delta_rule_triton_recurrent", SCHEMA, _fake, f"{__name__}.triton_steps"),
    "fla": deferred(f"{__name__}.fla", "rule"),
}
WIDEST = 256  # keys of the kernels in Triton: they hold the rows of a state at once
SHORT = 16  # tokens up to which "auto" takes triton-recurrent: a chunk costs as much as one of 64


class Operands(NamedTuple):
    """What a form takes: gates and state are there, in the dtype of sums. The axes are those of `gated_delta_rule`."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_alpha: Tensor
    beta: Tensor
    state: Tensor
    cu_seqlens: Tensor | None


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor | None,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """For each head and token,

        S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ        o_t = S_tᵀ q_t

    which is the paper's Eq. 10 with S transposed to [d_k, d_v].

    q, k: [B, L, H, d_k]. v: [B, L, H_v, d_v], H_v a multiple of H; value head i reads key head i // (H_v / H).
    log_alpha: [B, L, H_v], ≤ 0; −inf forgets everything; None is the delta rule (α = 1).
    beta: [B, L, H_v], in [0, 1], or up to 2 for negative eigenvalues. Stable while β‖k‖² ≤ 2: use unit keys.
    state: [N, H_v, d_k, d_v] before the first token, zero if None; float32, or float64 with float64 inputs.
    cu_seqlens: [N + 1], packs N sequences in one row (B = 1). Without it N = B.
    backend: "reference" (the recurrence), "parallel" (O(L²), for study), "chunkwise", "cpp" (native, on a CPU,
    float32 and bfloat16), "cpp-recurrent" (token by token: slower, but with one instruction set the same bits however
    the sequence is cut, batched, packed or decoded), "triton" (on a GPU, d_k ≤ 256, not float64), "triton-recurrent"
    (alike, token by token, for short sequences), "fla" (flash-linear-attention, on a GPU), or "auto": cpp where it can
    run (cpp-recurrent for one token), triton (triton-recurrent up to 16 tokens) on a GPU that it is compiled for in
    tests, else chunkwise.

    Returns o: [B, L, H_v, d_v], in v's dtype, and the state after the last token of each sequence.
    """
    op = "gated_delta_rule"
    operands = check_inputs(op, q, k, v, log_alpha, beta, state, cu_seqlens)
    return choose(op, BACKENDS, backend, q)(*operands)


def choose(op: str, backends: Mapping[str, Callable], backend: str, q: Tensor) -> Callable:
    """For "auto" also between forms of one kind: the recurrence is faster for one token, and rounds better for d_k = 1;
    on a GPU it is taken for short sequences.
    """
    if backend == "auto" and 1 in (q.shape[1], q.shape[3]) and native.refusal(q) is None:
        backend = "cpp-recurrent"
    beyond = f"takes d_k up to {WIDEST}, q has {q.shape[3]}" if q.shape[3] > WIDEST else None
    if backend == "auto" and q.shape[1] <= SHORT and not beyond and gpu.preferred(q):
        backend = "triton-recurrent"
    return checks.choose_backend(op, backends, backend, auto="chunkwise", like=q, beyond=beyond)


def check_inputs(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor | None,
    beta: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Operands:
    """The inputs as a form takes them."""
    sizes = checks.check_shapes(
        op,
        q=(q, "B L H d_k"),
        k=(k, "B L H d_k"),
        v=(v, "B L H_v d_v"),
        log_alpha=(log_alpha, "? B L H_v"),
        beta=(beta, "B L H_v"),
    )
    checks.check_groups(op, sizes["H"], sizes["H_v"])
    dtype = checks.check_floats(op, q=q, k=k, v=v)
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, q)
    checks.check_gates(op, beta=beta)
    if log_alpha is None:
        log_alpha = torch.zeros_like(beta, dtype=dtype)
    checks.check_log_alpha(op, log_alpha)
    state = checks.check_state(op, state, "N H_v d_k d_v", sizes, like=q)
    return Operands(q, k, v, log_alpha.to(dtype), beta.to(dtype), state, cu_seqlens)


class StepInputs(NamedTuple):
    """What `gated_delta_rule_step_` is given."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_alpha: Tensor | None
    beta: Tensor
    state: Tensor


def gated_delta_rule_step_(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor | None, beta: Tensor, state: Tensor
) -> Tensor:
    """One token of decoding: updates `state` in place and returns o: [N, H_v, d_v]. No gradient.

    q, k: [N, H, d_k], v: [N, H_v, d_v], log_alpha, beta: [N, H_v], state: [N, H_v, d_k, d_v], as in `gated_delta_rule`.
    Where "cpp-recurrent" can run and the state is contiguous, it is that; on a GPU likewise "triton-recurrent".
    """
    return _step_(StepInputs(q, k, v, log_alpha, beta, state))


@prepared
def _step_(x: StepInputs) -> Callable[[StepInputs], Tensor]:
    op = "gated_delta_rule_step_"
    sizes = checks.check_shapes(
        op,
        q=(x.q, "N H d_k"),
        k=(x.k, "N H d_k"),
        v=(x.v, "N H_v d_v"),
        log_alpha=(x.log_alpha, "? N H_v"),
        beta=(x.beta, "N H_v"),
    )
    checks.check_groups(op, sizes["H"], sizes["H_v"])
    checks.check_floats(op, q=x.q, k=x.k, v=x.v)
    checks.check_gates(op, log_alpha=x.log_alpha, beta=x.beta)
    checks.check_step_state(op, x.state, "N H_v d_k d_v", sizes, like=x.q)
    checks.check_no_grad(op, *x)
    if can_step_on_gpu(*x):
        return lambda x: step_on_gpu(*_operands(x), x.state, x.state)
    if not cpp_recurrent.can_step(*x):
        return lambda x: _step_in_torch_(*x)
    step = cpp_recurrent.prepare_step(x.q, x.v, x.state)

    def run(x: StepInputs) -> Tensor:
        q, k, v, log_alpha, beta = _operands(x)
        o = step.run(q, k, v, log_alpha, beta, x.state, x.state)
        return _step_in_torch_(*x) if o is None else o  # which says what gate is NaN

    def run_as_given(x: StepInputs) -> Tensor:
        q, k, v, log_alpha, beta, state = x
        assert log_alpha is not None  # as in the first call of this layout
        o = step.run(q, k, v, log_alpha, beta, state, state)
        return _step_in_torch_(*x) if o is None else o

    return run_as_given if all(given is z for given, z in zip(x, _operands(x), strict=False)) else run


def can_step_on_gpu(q: Tensor, *others: Tensor | None) -> bool:
    """Whether `step_on_gpu` takes these, once they are contiguous. others: the state last, which must be."""
    fits = gpu.preferred(q) and q.shape[-1] <= WIDEST and without_gradient(q, *others)
    return fits and others[-1] is not None and others[-1].is_contiguous()


step_on_gpu = deferred(f"{__name__}.triton_steps", "step")


def _operands(x: StepInputs) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, log_alpha and beta as the kernel takes them: contiguous, the gates in the state's dtype."""
    log_alpha = torch.zeros_like(x.beta) if x.log_alpha is None else x.log_alpha
    log_alpha, beta = log_alpha.to(x.state.dtype), x.beta.to(x.state.dtype)
    return x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), log_alpha.contiguous(), beta.contiguous()


@without_autocast
def _step_in_torch_(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor | None, beta: Tensor, state: Tensor) -> Tensor:
    checks.check_gates("gated_delta_rule_step_", log_alpha=log_alpha, beta=beta)
    q, k, v, log_alpha, beta = _operands(StepInputs(q, k, v, log_alpha, beta, state))
    q, k = (x.to(state.dtype).repeat_interleave(v.shape[1] // x.shape[1], 1)[..., None, :] for x in (q, k))
    state *= log_alpha.exp()[..., None, None]
    u = beta[..., None, None] * (v.to(state.dtype)[..., None, :] - k @ state)
    state += k.mT * u
    return (q @ state).squeeze(-2).to(v.dtype)
