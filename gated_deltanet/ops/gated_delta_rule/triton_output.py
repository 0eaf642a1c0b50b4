"""(iii) The outputs of every chunk, all in parallel, from the state before it and its corrections."""

import triton
import triton.language as tl

from .triton_chunk import (
    decay_from_start,
    decay_mask,
    exact_product,
    load_gate,
    load_state,
    load_tile,
    product,
    store_tile,
)


@triton.jit
def chunk_output(
    q, k, U, log_alpha, states, starts, lengths, o,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, H_V, ⌈D_V / COLUMNS⌉]. Writes O = diag(γ) Q S + (Γ ⊙ Q Kᵀ) U to o: [tokens, H_V, D_V]."""
    chunk, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * COLUMNS
    start, length = tl.load(starts + chunk), tl.load(lengths + chunk)
    if length == 0:
        return
    key_head, chunk_head = head // (H_V // H), chunk.to(tl.int64) * H_V + head

    QS, QK = tl.zeros((C, COLUMNS), tl.float32), tl.zeros((C, C), tl.float32)
    for first in range(0, D_K, WIDTH):
        Q = load_tile(q, start, length, key_head, H, D_K, first, C, WIDTH)
        K = load_tile(k, start, length, key_head, H, D_K, first, C, WIDTH)
        S = load_state(states, chunk_head, D_K, D_V, first, column, WIDTH, COLUMNS)
        QS += product(Q, S, OPERAND, PRECISION)
        QK += product(Q, tl.trans(K), OPERAND, PRECISION)

    alpha_gate = load_gate(log_alpha, start, length, head, H_V, C)
    U_tile = load_tile(U, start, length, head, H_V, D_V, column, C, COLUMNS)
    within = exact_product(decay_mask(alpha_gate, C) * QK, U_tile, OPERAND, PRECISION)
    O = decay_from_start(alpha_gate)[:, None] * QS + within
    store_tile(o, O, start, length, head, H_V, D_V, column, C, COLUMNS)
