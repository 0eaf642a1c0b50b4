"""The gated delta rule in C++ token by token (csrc/gated_delta_rule_recurrent_forward.cpp, …_backward.cpp).

Its sums have one order, so with one instruction set results are the same bits however a sequence is cut, batched,
packed or decoded.
"""

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

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
pack_token = Struct("8P").pack  # struct Token of csrc/api.h. As bytes: ctypes takes 0.4 µs longer over eight pointers


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
    """Whether a `Step` takes these, once they are contiguous and in the dtypes it names."""
    return native.refusal(q) is None and state.is_contiguous() and unwatched(q, k, v, log_alpha, beta, state)


class Step(NamedTuple):
    """One token of each sequence, for operands of one layout: it holds none of them. Made by `prepare_step`."""

    kernel: Callable[[Any, bytes], int]
    layout: Any  # a native.Rule by reference: sizes and strides
    ends: Tensor  # which the layout points to

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor, last_state: Tensor
    ) -> Tensor | None:
        """o, like v; the state after the token is written to last_state, which may be the state itself.

        None, and nothing is done, if a gate is NaN. All operands are contiguous:
        q, k: [N, …, H, d_k], v: [N, …, H_v, d_v], log_alpha, beta: [N, …, H_v], states: [N, H_v, d_k, d_v], float32.
        """
        o = torch.empty_like(v)
        token = pack_token(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), log_alpha.data_ptr(), beta.data_ptr(), state.data_ptr(),
            last_state.data_ptr(), o.data_ptr(),
        )  # fmt: skip
        if not self.kernel(self.layout, token):
            return None
        if last_state is state and not state.is_inference():
            increment_version(state)  # or autograd would not notice
        return o


def prepare_step(q: Tensor, v: Tensor, state: Tensor, normalise: bool = False) -> Step:
    """For operands of these sizes. normalise: as in `cpp.rule`."""
    (H, d_k), (H_v, d_v) = q.shape[-2:], v.shape[-2:]
    of_keys, of_values, of_gates = (native.Rows(None, heads * d, d) for heads, d in ((H, d_k), (H_v, d_v), (H_v, 1)))
    ends = even_ends(len(q), 1)
    rule = native.rule(q, (of_keys, of_keys, of_values, of_gates, of_gates), state, ends, normalise)
    rule.o = of_values
    return Step(native.library().gdn_gated_delta_rule_step, ctypes.byref(rule), ends)


OPERATOR = operator("gated_delta_rule_cpp_recurrent", SCHEMA, forward, fake, backward)
