"""FLA's linear attentions with decays: a head and token (simple GLA), a head (retention), a key and token (GLA)."""

import torch
from torch import Tensor

from gated_deltanet.ops import linear_attention
from gated_deltanet.ops.packing import check_ends

from .arguments import Call, check_chunk_size, check_decay, final_state, read, read_deprecated


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """S_t = e^{g_t} S_{t−1} + k_t v_tᵀ,  o_t = scale · S_tᵀ q_t.

    q, k: [B, T, H, K], v: [B, T, H, V]. g: [B, T, H], log decays, or g_gamma: [H], fixed ones; neither: no decay.
    initial_state: [N, H, K, V], with state_v_first [N, H, V, K]. cu_seqlens: [N + 1], packs N sequences in one row.
    scale: K^−½ if None. chunk_size has no effect here.

    Returns o: [B, T, H, V], and the last state in float32, or None without output_final_state.
    """
    op = "chunk_simple_gla"
    check_chunk_size(op, chunk_size)
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    gates = {"g": (g, "? B T H"), "g_gamma": (g_gamma, "? H")}
    call = read(
        op, q, k, v, gates, scale, initial_state, cu_seqlens, state_v_first=state_v_first, cu_seqlens_cpu=cu_seqlens_cpu
    )
    o, S = attend(call, _head_decay(op, g, g_gamma))
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_simple_gla`; with reverse from the last token of each sequence to its first."""
    op = "fused_recurrent_simple_gla"
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    gates = {"g": (g, "? B T H"), "g_gamma": (g_gamma, "? H")}
    call = read(op, q, k, v, gates, scale, initial_state, cu_seqlens, state_v_first=state_v_first)
    o, S = attend(call, _head_decay(op, g, g_gamma), reverse=reverse)
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_simple_gla` with RetNet's decays, 1 − 2^{−5−h} for head h = 0, 1, …"""
    op = "chunk_retention"
    check_chunk_size(op, chunk_size)
    read_deprecated(op, False, deprecated)
    call = read(op, q, k, v, {}, scale, initial_state, cu_seqlens)
    o, S = attend(call, _retention_decay(call))
    return o.to(q.dtype), final_state(S, output_final_state)


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_retention`; with reverse from the last token of each sequence to its first."""
    op = "fused_recurrent_retention"
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    call = read(op, q, k, v, {}, scale, initial_state, cu_seqlens, state_v_first=state_v_first)
    o, S = attend(call, _retention_decay(call), reverse=reverse)
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """S_t = diag(e^{g_t}) S_{t−1} + k_t v_tᵀ,  o_t = scale · S_tᵀ q_t. g: [B, T, H, K]; the rest as in simple GLA."""
    op = "chunk_gla"
    gates = {"g": (g, "B T H K")}
    call = read(
        op, q, k, v, gates, scale, initial_state, cu_seqlens, state_v_first=state_v_first, cu_seqlens_cpu=cu_seqlens_cpu
    )
    check_decay(op, "g", g)
    o, S = attend(call, g)
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **deprecated: bool,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gla` with S_t = diag(e^{gk_t}) S_{t−1} diag(e^{gv_t}) + k_t v_tᵀ. gk: [B, T, H, K], gv: [B, T, H, V].

    With both, the decays of every key and value are written out: [B, T, H, V, K]. reverse: from the last token on.
    """
    op = "fused_recurrent_gla"
    state_v_first = read_deprecated(op, state_v_first, deprecated)
    gates = {"gk": (gk, "? B T H K"), "gv": (gv, "? B T H V")}
    call = read(op, q, k, v, gates, scale, initial_state, cu_seqlens, state_v_first=state_v_first)
    for name, (gate, _) in gates.items():
        check_decay(op, name, gate)
    o, S = attend(call, gk, gv, reverse=reverse)
    return o.to(q.dtype), final_state(S, output_final_state, state_v_first)


def attend(call: Call, decay: Tensor | None, gv: Tensor | None = None, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """decay: None, [H], [B, T, H] or [B, T, H, K]."""
    order = _backwards(call) if reverse else None
    q, k, v = (x if order is None else x[:, order] for x in (call.q * call.scale, call.k, call.v))
    if order is not None:
        gv = gv if gv is None else gv[:, order]
        decay = decay if decay is None or decay.ndim == 1 else decay[:, order]
    if gv is None:
        o, S = linear_attention(q, k, v, decay, call.state, cu_seqlens=call.cu_seqlens)
    else:
        o, S = _a_decay_a_value(call, q, k, v, decay, gv)
    return o if order is None else o[:, order], S


def _a_decay_a_value(
    call: Call, q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None, gv: Tensor
) -> tuple[Tensor, Tensor]:
    """The columns of S do not meet: each value is a head of its own, of width 1, with a decay of its own."""
    decay = gv if gk is None else gk[..., None, :] + gv[..., None]  # [B, T, H, V] or [B, T, H, V, K]
    state = None if call.state is None else call.state.mT.flatten(1, 2)[..., None]
    values = v.flatten(2)[..., None]
    o, S = linear_attention(q, k, values, decay.flatten(2, 3), state, cu_seqlens=call.cu_seqlens)
    return o.reshape(v.shape), S.squeeze(-1).unflatten(1, v.shape[2:]).mT


def _head_decay(op: str, g: Tensor | None, g_gamma: Tensor | None) -> Tensor | None:
    if g is not None and g_gamma is not None:
        raise ValueError(f"{op}: g and g_gamma are both given, expected at most one of them")
    check_decay(op, "g", g)
    check_decay(op, "g_gamma", g_gamma)
    return g if g_gamma is None else g_gamma


def _retention_decay(call: Call) -> Tensor:
    """[H], in the dtype of sums."""
    heads = torch.arange(call.q.shape[2], dtype=torch.float64)
    return torch.log1p(-torch.exp2(-5 - heads)).to(call.q.device, call.sums)


def _backwards(call: Call) -> Tensor:
    """[T]: which token is read at each place when every sequence is read from its end."""
    T, device = call.q.shape[1], call.q.device
    if call.cu_seqlens is None:
        return torch.arange(T - 1, -1, -1, device=device)
    check_ends(call.op, call.q, call.cu_seqlens)
    ends = call.cu_seqlens.to(device, torch.int64)
    first_and_last = (ends[:-1] + ends[1:] - 1).repeat_interleave(ends.diff(), output_size=T)
    return first_and_last - torch.arange(T, device=device)
