"""FLA's delta rules, gated and not. `g` is log α, `beta` is β, and a state is [N, HV, K, V], as ours."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gated_deltanet.ops import checks
from gated_deltanet.ops.gated_delta_mix.reference import log_decay

from .arguments import Call, check_chunk_size, check_decay, final_state, read, read_deprecated
from .rule import rule, token_by_token

TILES = (16, 32, 64)  # chunk sizes of FLA's kernels


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule (Eq. 10 of the paper) of scale · q, by chunks.

    q, k: [B, T, H, K]. v: [B, T, HV, V], HV a multiple of H. g, beta: [B, T, HV]. scale: K^−½ if None.
    g: log α; with use_gate_in_kernel log α = −exp(A_log) softplus(g + dt_bias); A_log and dt_bias (0 if None): [HV].
    beta: β; with use_beta_sigmoid_in_kernel β = σ(beta), with allow_neg_eigval, too, β = 2 σ(beta).
    initial_state: [N, HV, K, V], with state_v_first [N, HV, V, K]. cu_seqlens: [N + 1], packs N sequences in one row.
    chunk_size and chunk_indices have no effect here.

    Returns o: [B, T, HV, V], and the last state in float32, or None without output_final_state.
    """
    op = "chunk_gated_delta_rule"
    if cp_context is not None:
        raise ValueError(f"{op}: cp_context is {checks.shown(cp_context)}, expected None: there is no context parallel")
    check_chunk_size(op, chunk_size, TILES)
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    gates = {"g": (g, "B T HV"), "beta": (beta, "B T HV"), "A_log": (A_log, "? HV"), "dt_bias": (dt_bias, "? HV")}
    call = read(
        op, q, k, v, gates, scale, initial_state, cu_seqlens,
        grouped=True, state_v_first=state_v_first, cu_seqlens_cpu=cu_seqlens_cpu,
    )  # fmt: skip
    log_alpha = _decay(call, g, use_gate_in_kernel, A_log, dt_bias)
    beta = _beta(call, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    o, S = rule(call, use_qk_l2norm_in_kernel, log_alpha, beta)
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gated_delta_rule`, token by token, with a gradient.

    gk: [B, T, HV, K] and gv: [B, T, HV, V], decays in log space a key and a value, on top of g: [B, T, HV].
    beta: [B, T, HV] or, one a value, [B, T, HV, V]; 1 if None. gk is a loop in torch that keeps a state a token for
    the gradient; everything else is our op.
    """
    op = "fused_recurrent_gated_delta_rule"
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    gates = {"g": (g, "? B T HV"), "gk": (gk, "? B T HV K"), "gv": (gv, "? B T HV V")}
    gates |= {"beta": (beta, _beta_axes(beta, v, "HV")), "A_log": (A_log, "? HV"), "dt_bias": (dt_bias, "? HV")}
    call = read(op, q, k, v, gates, scale, initial_state, cu_seqlens, grouped=True, state_v_first=state_v_first)
    log_alpha = _decay(call, g, use_gate_in_kernel, A_log, dt_bias)
    for name, gate in (("gk", gk), ("gv", gv)):
        check_decay(op, name, gate)
    beta = _beta(call, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    o, S = token_by_token(call, use_qk_l2norm_in_kernel, log_alpha, gk, gv, beta)
    return o.to(v.dtype), final_state(S, output_final_state, state_v_first)


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int = 64,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gated_delta_rule` with α = 1. q, k: [B, T, H, K], v: [B, T, H, V], beta: [B, T, H]."""
    op = "chunk_delta_rule"
    check_chunk_size(op, chunk_size, TILES)
    read_deprecated(op, False, deprecated)
    gates = {"beta": (beta, "B T H")}
    call = read(op, q, k, v, gates, scale, initial_state, cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    o, S = rule(call, use_qk_l2norm_in_kernel, None, beta)
    return o.to(q.dtype), final_state(S, output_final_state)


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_delta_rule`, token by token. beta: [B, T, H] or, one a value, [B, T, H, V]; 1 if None."""
    op = "fused_recurrent_delta_rule"
    gates = {"beta": (beta, _beta_axes(beta, v, "H"))}
    call = read(op, q, k, v, gates, scale, initial_state, cu_seqlens)
    beta = _beta(call, beta)
    o, S = token_by_token(call, use_qk_l2norm_in_kernel, None, None, None, beta)
    return o.to(q.dtype), final_state(S, output_final_state)


def _decay(
    call: Call, g: Tensor | None, in_kernel: bool, A_log: Tensor | None, dt_bias: Tensor | None
) -> Tensor | None:
    """log α."""
    if not in_kernel:
        check_decay(call.op, "g", g)
        return g
    if g is None or A_log is None:
        missing = "g" if g is None else "A_log"
        raise ValueError(f"{call.op}: {missing} is None, expected a tensor with use_gate_in_kernel=True")
    bias = torch.zeros_like(A_log) if dt_bias is None else dt_bias
    return log_decay(g.to(call.sums), A_log.to(call.sums), bias.to(call.sums))


def _beta(call: Call, beta: Tensor | None, logits: bool = False, allow_neg_eigval: bool = False) -> Tensor:
    """β; ones if None, as if it had been given."""
    if allow_neg_eigval and not logits:
        raise ValueError(f"{call.op}: allow_neg_eigval is True, expected use_beta_sigmoid_in_kernel=True with it")
    beta = call.v.new_ones(call.v.shape[:-1], dtype=call.sums) if beta is None else beta.to(call.sums)
    if not logits:
        return beta
    return (2 if allow_neg_eigval else 1) * logsigmoid(beta).exp()


def _beta_axes(beta: Tensor | None, v: Tensor, heads: str) -> str:
    """FLA tells one β a head from one a value by the number of axes."""
    a_value = isinstance(beta, Tensor) and isinstance(v, Tensor) and beta.ndim == v.ndim
    return f"? B T {heads} V" if a_value else f"? B T {heads}"
