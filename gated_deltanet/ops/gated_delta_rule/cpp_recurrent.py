"""The gated delta rule in C++ token by token (csrc/gated_delta_rule_recurrent_forward.cpp, …_backward.cpp).

Its sums have one order, so results are bit for bit the same however a sequence is cut, batched, packed or decoded.
"""

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

import torch
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


def can_step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor | None, beta: Tensor, state: Tensor) -> bool:
    """Whether `step_like` takes these, once they are contiguous and in the dtypes it names."""
    return native.refusal(q) is None and state.is_contiguous() and unwatched(q, k, v, log_alpha, beta, state)


def step_like(
    q: Tensor, v: Tensor, state: Tensor, refuse: Callable[..., Any], normalise: bool = False
) -> Callable[..., Tensor]:
    """A function of one token of each sequence, for operands of these sizes; it holds none of them.

    step(q, k, v, log_alpha, beta, state, last_state=None): o, like v. It writes last_state, or else the state in place.
    If a gate is NaN it does nothing but to return refuse(q, k, v, log_alpha, beta, state). All operands are contiguous.
    q, k: [N, …, H, d_k], v: [N, …, H_v, d_v], log_alpha, beta: [N, …, H_v] float32, states: [N, H_v, d_k, d_v] float32.
    """
    (H, d_k), (H_v, d_v) = q.shape[-2:], v.shape[-2:]
    of_keys, of_values, of_gates = (native.Rows(None, heads * d, d) for heads, d in ((H, d_k), (H_v, d_v), (H_v, 1)))
    tokens, ends = (of_keys, of_keys, of_values, of_gates, of_gates), even_ends(len(q), 1)
    arguments = native.rule(q, tokens, state, ends, normalise)
    arguments.o = of_values
    layout, kernel = ctypes.byref(arguments), native.library().gdn_gated_delta_rule_step
    pointers = Struct("8P").pack  # as bytes: ctypes takes 0.4 µs longer over eight arguments

    def step(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_alpha: Tensor,
        beta: Tensor,
        state: Tensor,
        last_state: Tensor | None = None,
        kept: Tensor = ends,  # the arguments point to it
    ) -> Tensor:
        o, to = torch.empty_like(v), state if last_state is None else last_state
        operands = pointers(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), log_alpha.data_ptr(), beta.data_ptr(), state.data_ptr(),
            to.data_ptr(), o.data_ptr(),
        )  # fmt: skip
        if not kernel(layout, operands):
            return refuse(q, k, v, log_alpha, beta, state)
        if to is state and not state.is_inference():
            increment_version(state)  # or autograd would not notice
        return o

    return step


OPERATOR = operator("gated_delta_rule_cpp_recurrent", SCHEMA, forward, fake, backward)
