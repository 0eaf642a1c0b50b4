"""Linear attention with one decay a token on a GPU, forward and backward: the gated delta rule's kernels (section 3.3)
without its correction, so values take the place of U, and there is nothing to invert.
"""

from ..gated_delta_rule.triton_rule import gradients, outputs, pass_state, prepare


def forward(q, k, v, log_alpha, state, cu_seqlens):
    x = prepare(q, k, v, log_alpha[..., 0], log_alpha[..., 0], state, cu_seqlens, delta=False)
    states, U, last_state = pass_state(x, x.k, x.v)
    return outputs(x, states, U), last_state


def backward(grads, q, k, v, log_alpha, state, cu_seqlens):
    x = prepare(q, k, v, log_alpha[..., 0], log_alpha[..., 0], state, cu_seqlens, delta=False)
    states, U, _ = pass_state(x, x.k, x.v)
    dq, dk, dv, dlog_alpha, _, dstate = gradients(x, grads, x.k, U, x.state, states)
    return dq, dk, dv, dlog_alpha[..., None], dstate
