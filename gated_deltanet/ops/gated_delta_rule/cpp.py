"""The gated delta rule in C++ (csrc/gated_delta_rule_forward.cpp, csrc/gated_delta_rule_backward.cpp)."""

import ctypes

import torch
from torch import Tensor

from .. import native
from ..library import empty_contiguous, operator
from ..packing import sequence_ends

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
    """o and the last state; in training also u before β: [B L, H_v, d_v], and the states at checkpoints."""
    tokens, state = [native.readable(x) for x in (q, k, v, log_alpha, beta)], state.contiguous()
    ends = sequence_ends("gated_delta_rule", q, cu_seqlens)
    results = fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training)
    o, last_state, corrections, checkpoints = results
    arguments = native.rule(q, map(native.rows, tokens), state, ends, normalise)
    native.point(arguments, o=o, last_state=last_state)
    if training:
        native.point(arguments, corrections=corrections, checkpoints=checkpoints)
    if o.numel() or state.numel():
        native.run("gated_delta_rule_forward", arguments)
    return results


def fake(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training):
    (B, L), (N, H_v, d_k, d_v) = q.shape[:2], state.shape
    kept = ((B * L, H_v, d_v), (B * L // native.CHECKPOINT + N, H_v, d_k, d_v)) if training else ((0,), (0,))
    return empty_contiguous(v), empty_contiguous(state), *(state.new_empty(shape) for shape in kept)


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens, normalise, training):
    do, dlast_state, corrections, checkpoints = grads
    if not training:  # nothing was kept
        corrections, checkpoints = forward(q, k, v, log_alpha, beta, state, cu_seqlens, normalise, True)[2:]
    tokens = [native.readable(x) for x in (q, k, v, log_alpha, beta)]
    ends = sequence_ends("gated_delta_rule", q, cu_seqlens)
    arguments = native.rule(q, map(native.rows, tokens), state, ends, normalise)
    native.point(arguments, corrections=corrections, checkpoints=checkpoints)
    wanted = {"dq": q, "dk": k, "dv": v, "dlog_alpha": log_alpha, "dbeta": beta, "dstate": state}
    return gradients("gated_delta_rule_backward", arguments, do, dlast_state, wanted)


def gradients(
    kernel: str, arguments: ctypes.Structure, do: Tensor, dlast_state: Tensor, wanted: dict[str, Tensor]
) -> list[Tensor]:
    """What a backward kernel writes. wanted: the fields it is written to, and what it is the gradient of."""
    if not (do.numel() or dlast_state.numel()):  # neither outputs nor states
        return [torch.zeros_like(x) for x in wanted.values()]
    do, dlast_state = native.readable(do), dlast_state.contiguous()
    results = {name: empty_contiguous(x) for name, x in wanted.items()}
    native.point(arguments, do_=do, dlast_state=dlast_state, **results)
    native.run(kernel, arguments)
    return list(results.values())


OPERATOR = operator("gated_delta_rule_cpp", SCHEMA, forward, fake, backward, keeps=2)
