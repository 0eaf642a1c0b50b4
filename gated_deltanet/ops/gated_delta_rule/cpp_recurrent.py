"""The gated delta rule in C++ token by token (csrc/gated_delta_rule_recurrent_forward.cpp, …_backward.cpp).

Its sums have one order, so results are bit for bit the same however a sequence is cut, batched, packed or decoded.
"""

from torch import Tensor
from torch.autograd.graph import increment_version

from .. import native
from ..library import empty_contiguous, operator, unwatched
from ..packing import even_ends, sequence_ends
from .cpp import gradients

SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor beta, Tensor state, Tensor? cu_seqlens, bool normalise)"
    " -> (Tensor, Tensor)"
)


def rule(q, k, v, log_alpha, beta, state, cu_seqlens, normalise=False):
    """normalise: as in `cpp.rule`."""
    return OPERATOR(q, k, v, log_alpha, beta, state, cu_seqlens, normalise)


def forward(q, k, v, log_alpha, beta, state, cu_seqlens, normalise):
    tokens, state = [native.readable(x) for x in (q, k, v, log_alpha, beta)], state.contiguous()
    ends = sequence_ends("gated_delta_rule", q, cu_seqlens)
    o, last_state = results = fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise)
    arguments = native.rule(q, map(native.rows, tokens), state, ends, normalise)
    native.point(arguments, o=o, last_state=last_state)
    native.run("gated_delta_rule_recurrent_forward", arguments)
    return results


def fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise):
    return empty_contiguous(v), empty_contiguous(state)


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens, normalise):
    (do, dlast_state), contiguous = grads, state.contiguous()
    tokens = [native.readable(x) for x in (q, k, v, log_alpha, beta)]
    ends = sequence_ends("gated_delta_rule", q, cu_seqlens)
    arguments = native.rule(q, map(native.rows, tokens), contiguous, ends, normalise)
    wanted = {"dq": q, "dk": k, "dv": v, "dlog_alpha": log_alpha, "dbeta": beta, "dstate": state}
    return gradients("gated_delta_rule_recurrent_backward", arguments, do, dlast_state, wanted)


def can_step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor) -> bool:
    """Whether `step_` takes these, in the dtypes it names."""
    return native.refusal(q) is None and state.is_contiguous() and unwatched(q, k, v, log_alpha, beta, state)


def step_(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor, normalise: bool = False
) -> Tensor:
    """One token of each sequence: o: [N, H_v, d_v]. The state, contiguous, is updated in place.

    q, k: [N, H, d_k], v: [N, H_v, d_v], log_alpha, beta: [N, H_v] float32, state: [N, H_v, d_k, d_v] float32.
    """
    tokens, o = [x.contiguous() for x in (q, k, v, log_alpha, beta)], empty_contiguous(v)
    *rows, o_rows = (native.Rows(x.data_ptr(), *x.stride()[:2]) for x in (*tokens, o))
    arguments = native.rule(q, rows, state, even_ends(len(q), 1), normalise)
    arguments.o, arguments.last_state = o_rows, arguments.state
    native.run("gated_delta_rule_recurrent_forward", arguments)
    if not state.is_inference():
        increment_version(state)  # or autograd would not notice
    return o


OPERATOR = operator("gated_delta_rule_cpp_recurrent", SCHEMA, forward, fake, backward)
