"""The delta rule as FLA's functions call it, and with the gates that only the recurrent ones have: a key, a value."""

from dataclasses import replace

import torch
from torch import Tensor

from gated_deltanet.ops import gated_delta_rule, native
from gated_deltanet.ops.gated_delta_mix import BACKENDS as NORMALISING
from gated_deltanet.ops.gated_delta_mix.reference import unit
from gated_deltanet.ops.gated_delta_rule import check_inputs, choose
from gated_deltanet.ops.library import without_autocast
from gated_deltanet.ops.packing import each_sequence

from .arguments import Call


def rule(call: Call, normalise: bool, g: Tensor | None, beta: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """normalise: q and k. g: [B, T, HV], log α, beta: [B, T, HV]."""
    if normalise and call.scale == call.q.shape[-1] ** -0.5:  # norm and scale inside the op
        operands = check_inputs(call.op, call.q, call.k, call.v, g, beta, call.state, call.cu_seqlens)
        return choose(call.op, NORMALISING, backend, call.q)(*operands)
    q, k = keys(call, normalise)
    return gated_delta_rule(q, k, call.v, g, beta, call.state, cu_seqlens=call.cu_seqlens, backend=backend)


def keys(call: Call, normalise: bool) -> tuple[Tensor, Tensor]:
    """scale · q and k, after x / √(‖x‖² + 1e-6) of both; rounded once."""
    q, k = (unit(x.to(call.sums)) if normalise else x for x in (call.q, call.k))
    return (q * call.scale).to(call.q.dtype), k.to(call.k.dtype)


def token_by_token(
    call: Call, normalise: bool, g: Tensor | None, gk: Tensor | None, gv: Tensor | None, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """g: [B, T, HV], gk: [B, T, HV, K], gv: [B, T, HV, V], log decays. beta: [B, T, HV] or [B, T, HV, V].

    By our recurrent form where it runs.
    """
    if gk is not None:
        return a_decay_a_key(call, normalise, g, gk, gv, beta)
    if gv is not None or beta.ndim == 4:
        return a_gate_a_value(call, normalise, g, gv, beta)
    return rule(call, normalise, g, beta, recurrent_form(call))


def recurrent_form(call: Call) -> str:
    return "auto" if native.refusal(call.q) else "cpp-recurrent"


def a_gate_a_value(
    call: Call, normalise: bool, g: Tensor | None, gv: Tensor | None, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The columns of S do not meet: each value is a head of its own, of width 1, with gates of its own."""
    decay, beta = (gate.flatten(2) for gate in (spread(call, g, gv), spread(call, beta)))  # [B, T, HV · V]
    v = call.v.flatten(2)[..., None]
    state = None if call.state is None else call.state.mT.flatten(1, 2)[..., None]  # [N, HV · V, K, 1]
    o, S = rule(replace(call, v=v, state=state), normalise, decay, beta, recurrent_form(call))
    return o.reshape(call.v.shape), S.squeeze(-1).unflatten(1, call.v.shape[2:]).mT


def spread(call: Call, *gates: Tensor | None) -> Tensor:
    """The sum of gates [B, T, HV] and [B, T, HV, V], one a value."""
    total = call.v.new_zeros(call.v.shape, dtype=call.sums)
    for gate in gates:
        if gate is not None:
            total = total + (gate if gate.ndim == 4 else gate[..., None])
    return total


@without_autocast
def a_decay_a_key(
    call: Call, normalise: bool, g: Tensor | None, gk: Tensor, gv: Tensor | None, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """A loop in torch: our rule has no decay a key. The gradient keeps a state a token."""
    HV, V = call.v.shape[2:]
    q, k = (x.repeat_interleave(HV // x.shape[2], 2) for x in keys(call, normalise))
    gk = gk if g is None else gk + g[..., None]
    gv = gk.new_zeros(1).expand_as(call.v) if gv is None else gv
    beta = beta if beta.ndim == 4 else beta[..., None]
    N = call.v.shape[0] if call.cu_seqlens is None else len(call.cu_seqlens) - 1
    state = gk.new_zeros(N, HV, gk.shape[-1], V, dtype=call.sums) if call.state is None else call.state
    tokens = [x.to(call.sums) for x in (q, k, call.v, gk, gv, beta)]
    return each_sequence(call.op, _loop, tokens, state, call.cu_seqlens)


def _loop(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, gv: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, gk: [B, T, HV, K], v, gv: [B, T, HV, V], beta: [B, T, HV, 1 or V], S: [B, HV, K, V]."""
    o = []
    for q_t, k_t, v_t, gk_t, gv_t, beta_t in zip(*(x.unbind(1) for x in (q, k, v, gk, gv, beta)), strict=True):
        S = gk_t.exp()[..., None] * S * gv_t.exp()[..., None, :]
        u_t = beta_t * (v_t - torch.einsum("bhk,bhkv->bhv", k_t, S))
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, u_t)
        o.append(torch.einsum("bhk,bhkv->bhv", q_t, S))
    return torch.stack(o, 1) if o else torch.zeros_like(v), S
