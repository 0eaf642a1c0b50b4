"""The gated delta rule on a GPU (section 3.3): the kernels in their order, forward and backward.

Linear attention, the same without a correction, shares all but the first of them (`linear_attention`'s files).
Nothing is tuned at run time: the tiles are those of `triton_tiles`, or what `gdn tune` once wrote. No sum is made by
atomics, so a call repeated gives the same bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from .. import gpu
from ..launches import Chunks, how_many, launch, lay_out
from .triton_backward import correction_gradient, key_gradients, score_gradients, state_pass_backward
from .triton_output import chunk_output
from .triton_state import state_pass
from .triton_tiles import Tiles
from .triton_ut import ut_transform
from .tuned_tiles import tiles_for

OPERANDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Call(NamedTuple):
    """Operands as the kernels read them: contiguous, with what follows from their sizes.

    delta: whether what is recalled is corrected; if not, it is linear attention, and beta is not read.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_alpha: Tensor
    beta: Tensor
    state: Tensor
    delta: bool
    chunks: Chunks
    tiles: Tiles
    constants: dict[str, Any]

    def run(self, kernel: Any, grid: tuple[int, ...], *arguments: Tensor | int, **constants: Any) -> None:
        launch(kernel, grid, arguments, self.constants | constants, self.tiles.options(kernel.__name__))

    @property
    def each_chunk(self) -> tuple[int, int]:
        return len(self.chunks.starts), self.v.shape[2]

    @property
    def each_state(self) -> tuple[int, int]:
        return self.state.shape[0] * self.state.shape[1], how_many(self.state.shape[3], self.tiles.columns)


def prepare(q, k, v, log_alpha, beta, state, cu_seqlens, delta: bool = True) -> Call:
    op = "gated_delta_rule" if delta else "linear_attention"
    (H, d_k), (H_v, d_v) = q.shape[2:], v.shape[2:]
    architecture = gpu.architecture(q.device)
    tile = tiles_for(d_k, d_v, q.dtype, architecture)
    constants = {
        "H": H, "H_V": H_v, "D_K": d_k, "D_V": d_v, "C": tile.C,
        "OPERAND": OPERANDS[q.dtype], "PRECISION": precision(q.dtype, architecture),
    }  # fmt: skip
    q, k, v, log_alpha, beta, state = (x.contiguous() for x in (q, k, v, log_alpha, beta, state))
    return Call(q, k, v, log_alpha, beta, state, delta, lay_out(op, q, cu_seqlens, tile.C), tile, constants)


def precision(dtype: torch.dtype, architecture: str) -> str:
    """Of products of float32: AMD's are whole; three of the 19 bits that NVIDIA's tensor cores read are as good."""
    if architecture.startswith("gfx"):
        return "ieee"
    return "tf32x3" if dtype == torch.float32 else "tf32"


def corrections(x: Call, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """W, U before the state is known (float32: what is subtracted from it may be as large), and T if it is kept."""
    W, U = x.v.new_empty(x.v.shape[:3] + x.k.shape[3:]), torch.empty_like(x.v, dtype=torch.float32)
    T = x.state.new_empty((*x.v.shape[:3], x.tiles.C) if keep else (0,))
    arguments = (x.k, x.v, x.log_alpha, x.beta, x.chunks.starts, x.chunks.lengths, W, U, T)
    x.run(ut_transform, x.each_chunk, *arguments, WIDTH=x.tiles.width, KEEP=keep)
    return W, U, T


def pass_state(x: Call, W: Tensor, U: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The state before each chunk, the corrections in it, and the last state of each sequence."""
    states, last_state = x.v.new_empty(len(x.chunks.starts), *x.state.shape[1:]), torch.empty_like(x.state)
    corrected = torch.empty_like(U) if x.delta else U
    arguments = (x.k, W, U, x.log_alpha, x.state, x.chunks.ends, x.chunks.first, states, corrected, last_state)
    x.run(state_pass, x.each_state, *arguments, ROWS=x.tiles.rows, COLUMNS=x.tiles.columns, DELTA=x.delta)
    return states, corrected, last_state


def outputs(x: Call, states: Tensor, U: Tensor) -> Tensor:
    o, columns = torch.empty_like(x.v), x.tiles.outputs
    arguments = (x.q, x.k, U, x.log_alpha, states, x.chunks.starts, x.chunks.lengths, o)
    grid = (*x.each_chunk, how_many(x.v.shape[3], columns))
    x.run(chunk_output, grid, *arguments, WIDTH=x.tiles.width, COLUMNS=columns)
    return o


def forward(q, k, v, log_alpha, beta, state, cu_seqlens):
    x = prepare(q, k, v, log_alpha, beta, state, cu_seqlens)
    W, U, _ = corrections(x, keep=False)
    states, U, last_state = pass_state(x, W, U)
    return outputs(x, states, U), last_state


def backward(grads, q, k, v, log_alpha, beta, state, cu_seqlens):
    x = prepare(q, k, v, log_alpha, beta, state, cu_seqlens)
    W, U, T = corrections(x, keep=True)
    states, U, _ = pass_state(x, W, U)
    return gradients(x, grads, W, U, T, states)


def gradients(
    x: Call, grads: Sequence[Tensor], W: Tensor, U: Tensor, T: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of q, k, v, log_alpha, beta and state. grads: of o and the last state. Without delta no W, T, dbeta."""
    do, dlast_state = (grad.contiguous() for grad in grads)
    starts, lengths, width = x.chunks.starts, x.chunks.lengths, x.tiles.width
    (B, L, H_v, _), (d_k, d_v) = x.v.shape, x.state.shape[2:]
    of_keys, of_values = how_many(d_k, width), how_many(d_v, width)

    dU, dstates, dstate = torch.empty_like(x.v), torch.empty_like(states), torch.empty_like(x.state)
    arguments = (x.q, x.k, x.log_alpha, do, starts, lengths, dU)
    x.run(correction_gradient, (*x.each_chunk, of_values), *arguments, WIDTH=width, COLUMNS=width)
    arguments = (x.q, x.k, W, x.log_alpha, do, dlast_state, x.chunks.ends, x.chunks.first, dU, dstates, dstate)
    x.run(state_pass_backward, x.each_state, *arguments, ROWS=x.tiles.rows, COLUMNS=x.tiles.columns, DELTA=x.delta)

    dv, (dQK, dKK) = torch.empty_like(x.v), (x.v.new_empty(B, L, H_v, x.tiles.C) for _ in range(2))
    dlog_alpha, dbeta = (x.beta.new_empty(1 + of_keys, B, L, H_v) for _ in range(2))
    scores = (x.q, x.k, x.v, U, T, x.log_alpha, x.beta, do, starts, lengths, dU, dv, dQK, dKK, dlog_alpha, dbeta)
    x.run(score_gradients, x.each_chunk, *scores, WIDTH=width, DELTA=x.delta)
    shared = x.q.shape[2] != H_v
    dq, dk = (x.q.new_empty(B, L, H_v, d_k, dtype=torch.float32 if shared else x.q.dtype) for _ in range(2))
    arguments = (
        x.q, x.k, U, x.log_alpha, x.beta, do, states, starts, lengths, dU, dstates, dQK, dKK, dq, dk, dlog_alpha, dbeta,
        B * L,
    )  # fmt: skip
    x.run(key_gradients, (*x.each_chunk, of_keys), *arguments, WIDTH=width, COLUMNS=width, DELTA=x.delta)
    dq, dk = (sum_over_values(grad, like=x.q) for grad in (dq, dk))
    return dq, dk, dv if x.delta else dU, dlog_alpha.sum(0), dbeta.sum(0), dstate


def sum_over_values(grad: Tensor, like: Tensor) -> Tensor:
    """Of the value heads that read a key head. grad: [B, L, H_v, d_k] -> [B, L, H, d_k]."""
    return grad.unflatten(2, (like.shape[2], -1)).sum(3).to(like.dtype) if grad.shape != like.shape else grad
