"""Linear attention in C++.

One decay a token: the gated delta rule's kernels without its correction. One a token and key: kernels of its own
(csrc/linear_attention_per_key_forward.cpp, csrc/linear_attention_per_key_backward.cpp).
"""

import torch
from torch import Tensor

from .. import native
from ..checks import check_cu_seqlens
from ..gated_delta_rule.cpp import CHECKPOINT
from ..library import empty_contiguous, operator

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
    """o and the last state; in training also the state every CHECKPOINT tokens."""
    tokens, state, ends = _readable(q, k, v, log_alpha), state.contiguous(), _ends(q, cu_seqlens)
    o, last_state, checkpoints = results = fake(q, k, v, log_alpha, state, cu_seqlens, training)
    arguments = _arguments(tokens, state, ends)
    arguments.o, arguments.last_state = native.rows(o), last_state.data_ptr()
    arguments.checkpoints = checkpoints.data_ptr() if training else None
    native.run(_kernel(log_alpha, "forward"), arguments)
    return results


def fake(q, k, v, log_alpha, state, cu_seqlens, training):
    (B, L), (N, H_v, d_k, d_v) = q.shape[:2], state.shape
    kept = (B * L // CHECKPOINT + N, H_v, d_k, d_v) if training else (0,)
    return empty_contiguous(v), empty_contiguous(state), state.new_empty(kept)


def backward(grads, q, k, v, log_alpha, state, cu_seqlens, training):
    do, dlast_state, checkpoints = grads
    if not training:  # nothing was kept
        checkpoints = forward(q, k, v, log_alpha, state, cu_seqlens, True)[2]
    tokens, ends, dlast_state = _readable(q, k, v, log_alpha, do), _ends(q, cu_seqlens), dlast_state.contiguous()
    dq, dk, dv, dlog_alpha, dstate = results = [empty_contiguous(x) for x in (q, k, v, log_alpha, state)]
    arguments = _arguments(tokens[:4], state, ends)
    arguments.checkpoints = checkpoints.data_ptr()
    for name, x in {"do_": tokens[4], "dq": dq, "dk": dk, "dv": dv, "dlog_alpha": dlog_alpha}.items():
        setattr(arguments, name, native.rows(x))
    arguments.dlast_state, arguments.dstate = dlast_state.data_ptr(), dstate.data_ptr()
    native.run(_kernel(log_alpha, "backward"), arguments)
    return results


def _kernel(log_alpha: Tensor, direction: str) -> str:
    return f"linear_attention_{direction}" if log_alpha.shape[-1] == 1 else f"linear_attention_per_key_{direction}"


def _readable(*tokens: Tensor) -> list[Tensor]:
    return [native.readable(x) for x in tokens]


def _ends(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    check_cu_seqlens("linear_attention", cu_seqlens, q)  # again: a compiled graph has not looked at its values
    return native.sequence_ends(q, cu_seqlens)


def _arguments(tokens: list[Tensor], state: Tensor, ends: Tensor) -> native.Rule:
    (N, H_v, d_k, d_v), q = state.shape, tokens[0]
    return native.Rule(
        N, q.shape[2], H_v, d_k, d_v, torch.get_num_threads(), q.dtype == torch.bfloat16, False, ends.data_ptr(),
        *map(native.rows, tokens), native.Rows(), state.data_ptr(),
    )  # fmt: skip


OPERATOR = operator("linear_attention_cpp", SCHEMA, forward, fake, backward, keeps=1)
