"""Linear attention in C++.

One decay a token: the gated delta rule's kernels without its correction. One a token and key: kernels of its own
(csrc/linear_attention_per_key_forward.cpp, csrc/linear_attention_per_key_backward.cpp).
"""

import torch
from torch import Tensor

from .. import native
from ..gated_delta_rule.cpp import gradients
from ..library import empty_contiguous, operator
from ..packing import sequence_ends

SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor state, Tensor? cu_seqlens, bool training)"
    " -> (Tensor, Tensor, Tensor)"
)


def attention(q, k, v, log_alpha, state, cu_seqlens):
    """log_alpha: [B, L, H_v, 1 or d_k]."""
    inputs = (q, k, v, log_alpha, state)
    training = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return OPERATOR(*inputs, cu_seqlens, training)[:2]


def forward(q, k, v, log_alpha, state, cu_seqlens, training):
    """o and the last state; in training also the states at checkpoints."""
    tokens, state = [native.readable(x) for x in (q, k, v, log_alpha)], state.contiguous()
    ends = sequence_ends("linear_attention", q, cu_seqlens)
    o, last_state, checkpoints = results = fake(q, k, v, log_alpha, state, cu_seqlens, training)
    arguments = native.rule(q, [*map(native.rows, tokens), native.Rows()], state, ends)
    native.point(arguments, o=o, last_state=last_state)
    if training:
        native.point(arguments, checkpoints=checkpoints)
    native.run(_kernel(log_alpha, "forward"), arguments)
    return results


def fake(q, k, v, log_alpha, state, cu_seqlens, training):
    (B, L), (N, H_v, d_k, d_v) = q.shape[:2], state.shape
    kept = (B * L // native.CHECKPOINT + N, H_v, d_k, d_v) if training else (0,)
    return empty_contiguous(v), empty_contiguous(state), state.new_empty(kept)


def backward(grads, q, k, v, log_alpha, state, cu_seqlens, training):
    do, dlast_state, checkpoints = grads
    if not training:  # nothing was kept
        checkpoints = forward(q, k, v, log_alpha, state, cu_seqlens, True)[2]
    tokens, ends = [native.readable(x) for x in (q, k, v, log_alpha)], sequence_ends("linear_attention", q, cu_seqlens)
    arguments = native.rule(q, [*map(native.rows, tokens), native.Rows()], state, ends)
    native.point(arguments, checkpoints=checkpoints)
    wanted = {"dq": q, "dk": k, "dv": v, "dlog_alpha": log_alpha, "dstate": state}
    return gradients(_kernel(log_alpha, "backward"), arguments, do, dlast_state, wanted)


def _kernel(log_alpha: Tensor, direction: str) -> str:
    return f"linear_attention_{direction}" if log_alpha.shape[-1] == 1 else f"linear_attention_per_key_{direction}"


OPERATOR = operator("linear_attention_cpp", SCHEMA, forward, fake, backward, keeps=1)
