"""Launches of the gated delta rule token by token: short sequences, forward and backward, and steps in place."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..launches import how_many, launch, rounded_up, sequence_ends
from .triton_recurrent import recurrence, recurrence_backward
from .triton_rule import sum_over_values

SPAN = 16  # tokens between states that backward keeps


class Tile(NamedTuple):
    """Of a state, in one program: 16 numbers of it in each thread, so that few heads still fill a GPU. In backward,
    where there are two states, 4 warps spill."""

    numbers: int
    warps: int

    def columns(self, d_k: int, d_v: int) -> int:
        """At least 64 bytes of a row: whole sectors of memory."""
        return min(rounded_up(d_v), max(self.numbers // rounded_up(d_k), 16), 32)


FORWARD, BACKWARD = Tile(2048, warps=4), Tile(4096, warps=8)


def constants(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> dict[str, Any]:
    """q: […, H, d_k], v: […, H_v, d_v]."""
    (H, d_k), (H_v, d_v) = q.shape[-2:], v.shape[-2:]
    return {
        "H": H, "H_V": H_v, "D_K": d_k, "D_V": d_v, "ROWS": rounded_up(d_k), "SPAN": SPAN,
        "PACKED": cu_seqlens is not None,
    }  # fmt: skip


def grid(state: Tensor, tile: Tile) -> tuple[int, int]:
    N, H_v, d_k, d_v = state.shape
    return N * H_v, how_many(d_v, tile.columns(d_k, d_v))


def forward(q, k, v, log_alpha, beta, state, cu_seqlens):
    q, k, v, log_alpha, beta, state = (x.contiguous() for x in (q, k, v, log_alpha, beta, state))
    ends = state if cu_seqlens is None else sequence_ends("gated_delta_rule", q, cu_seqlens)
    o, last_state = torch.empty_like(v), torch.empty_like(state)
    arguments = (q, k, v, log_alpha, beta, beta, beta, state, ends, o, last_state, state, q.shape[1], 1.0)
    run(recurrence, state, arguments, constants(q, v, cu_seqlens) | {"MIX": False, "KEEP": False, "DELTA": True})
    return o, last_state


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens):
    do, dlast_state = (grad.contiguous() for grad in grads)
    q, k, v, log_alpha, beta, state = (x.contiguous() for x in (q, k, v, log_alpha, beta, state))
    (N, H_v, d_k, _), (B, L), sizes = state.shape, q.shape[:2], constants(q, v, cu_seqlens)
    ends = state if cu_seqlens is None else sequence_ends("gated_delta_rule", q, cu_seqlens)
    checkpoints = state.new_empty(B * L // SPAN + N, *state.shape[1:])
    arguments = (q, k, v, log_alpha, beta, beta, beta, state, ends, v, state, checkpoints, L, 1.0)
    run(recurrence, state, arguments, sizes | {"MIX": False, "KEEP": True, "DELTA": True})

    tiles, states = grid(state, BACKWARD)[1], state.new_empty(N, H_v, SPAN, *state.shape[2:])
    dq, dk = (state.new_empty(tiles, B, L, H_v, d_k) for _ in range(2))
    dlog_alpha, dbeta = (state.new_empty(tiles, B, L, H_v) for _ in range(2))
    dv, dstate = torch.empty_like(v), torch.empty_like(state)
    arguments = (
        q, k, v, log_alpha, beta, checkpoints, ends, do, dlast_state, states, dq, dk, dv, dlog_alpha, dbeta, dstate,
        L, B * L,
    )  # fmt: skip
    run(recurrence_backward, state, arguments, sizes, BACKWARD)
    dq, dk = (sum_over_values(grad.sum(0), like=q).to(q.dtype) for grad in (dq, dk))
    return dq, dk, dv, dlog_alpha.sum(0), dbeta.sum(0), dstate


def step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor, last_state: Tensor) -> Tensor:
    """One token of N sequences: o, like v; the state after it is written to last_state, which may be the state itself.

    Contiguous q, k: [N, …, H, d_k], v: [N, …, H_v, d_v], log_alpha, beta: [N, …, H_v], states: [N, H_v, d_k, d_v].
    """
    return _step(q, k, v, (log_alpha, beta, beta, beta), 1.0, state, last_state)


def mix_step(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, beta_max: float,
    state: Tensor, last_state: Tensor,
) -> Tensor:  # fmt: skip
    """The same from what a layer projects, as in `gated_delta_mix`: norms, scale and gates in the same launch."""
    return _step(q, k, v, (a, b, A_log, dt_bias), float(beta_max), state, last_state, mix=True)


def linear_step(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, state: Tensor) -> Tensor:
    """The same of linear attention, with the state in place."""
    return _step(q, k, v, (log_alpha,) * 4, 1.0, state, state, delta=False)


def _step(q, k, v, gates, beta_max, state, last_state, mix=False, delta=True) -> Tensor:
    o = torch.empty_like(v)
    arguments = (q, k, v, *gates, state, state, o, last_state, state, 1, beta_max)
    run(recurrence, state, arguments, constants(q, v, None) | {"MIX": mix, "KEEP": False, "DELTA": delta})
    if last_state is state and not state.is_inference():
        increment_version(state)  # or autograd would not notice
    return o


def run(kernel: Any, state: Tensor, arguments: tuple, constants: dict[str, Any], tile: Tile = FORWARD) -> None:
    constants |= {"COLUMNS": tile.columns(*state.shape[2:])}
    launch(kernel, grid(state, tile), arguments, constants, {"num_warps": tile.warps, "num_stages": 2})
