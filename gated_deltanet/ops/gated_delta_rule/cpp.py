"""The gated delta rule in C++ (csrc/gated_delta_rule_forward.cpp, csrc/gated_delta_rule_backward.cpp)."""

import torch
from torch import Tensor

from .. import native
from ..checks import check_cu_seqlens
from ..library import empty_contiguous, operator

CHECKPOINT = 128  # tokens between the states kept for backward, as in csrc/gated_delta_rule.h
SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor beta, Tensor state, Tensor? cu_seqlens, bool normalise,"
    " bool training) -> (Tensor, Tensor, Tensor, Tensor)"
)


def rule(q, k, v, log_alpha, beta, state, cu_seqlens, normalise=False):
    """normalise: q and k are made unit vectors first, and q scaled by d_k^−½, as in `gated_delta_mix`."""
    inputs = (q, k, v, log_alpha, beta, state)
    training = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return OPERATOR(*inputs, cu_seqlens, normalise, training)[:2]


def forward(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training):
    """o and the last state; in training also u before β: [B L, H_v, d_v], and the state every CHECKPOINT tokens."""
    tokens, state, ends = _readable(q, k, v, log_alpha, beta), state.contiguous(), _ends(q, cu_seqlens)
    results = fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training)
    o, last_state, corrections, checkpoints = results
    arguments = _arguments(tokens, state, ends, normalise)
    arguments.o, arguments.last_state = native.rows(o), last_state.data_ptr()
    if training:
        arguments.corrections, arguments.checkpoints = corrections.data_ptr(), checkpoints.data_ptr()
    if o.numel() or state.numel():
        native.run("gated_delta_rule_forward", arguments)
    return results


def fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training):
    (B, L), (N, H_v, d_k, d_v) = q.shape[:2], state.shape
    kept = ((B * L, H_v, d_v), (B * L // CHECKPOINT + N, H_v, d_k, d_v)) if training else ((0,), (0,))
    return empty_contiguous(v), empty_contiguous(state), *(state.new_empty(shape) for shape in kept)


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training):
    do, dlast_state, corrections, checkpoints = grads
    if not training:  # nothing was kept
        corrections, checkpoints = forward(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, True)[2:]
    tokens, ends = _readable(q, k, v, log_alpha, beta, do), _ends(q, cu_seqlens)
    dlast_state = dlast_state.contiguous()
    if not (v.numel() or state.numel()):  # neither outputs nor states
        return [torch.zeros_like(x) for x in (q, k, v, log_alpha, beta, state)]
    *dtokens, dstate = results = [empty_contiguous(x) for x in (q, k, v, log_alpha, beta, state)]
    arguments = _arguments(tokens[:5], state, ends, normalise)
    arguments.corrections, arguments.checkpoints = corrections.data_ptr(), checkpoints.data_ptr()
    names = ("do_", "dq", "dk", "dv", "dlog_alpha", "dbeta")
    for name, x in zip(names, (tokens[5], *dtokens), strict=True):
        setattr(arguments, name, native.rows(x))
    arguments.dlast_state, arguments.dstate = dlast_state.data_ptr(), dstate.data_ptr()
    native.run("gated_delta_rule_backward", arguments)
    return results


def _readable(*tokens: Tensor) -> list[Tensor]:
    return [native.readable(x) for x in tokens]


def _ends(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    check_cu_seqlens("gated_delta_rule", cu_seqlens, q)  # again: a compiled graph has not looked at its values
    return native.sequence_ends(q, cu_seqlens)


def _arguments(tokens: list[Tensor], state: Tensor, ends: Tensor, normalise: bool) -> native.Rule:
    (N, H_v, d_k, d_v), q = state.shape, tokens[0]
    return native.Rule(
        N, q.shape[2], H_v, d_k, d_v, torch.get_num_threads(), q.dtype == torch.bfloat16, normalise, ends.data_ptr(),
        *map(native.rows, tokens), state.data_ptr(),
    )  # fmt: skip


OPERATOR = operator("gated_delta_rule_cpp", SCHEMA, forward, fake, backward, keeps=2)
