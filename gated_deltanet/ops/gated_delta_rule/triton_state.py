"""(ii) The pass of the state over the chunks of a sequence, in order. Its columns do not depend on each other."""

import triton
import triton.language as tl

from .triton_chunk import (
    decay_to_end,
    exact_product,
    load_gate,
    load_state,
    load_tile,
    product,
    store_state,
    store_tile,
)


@triton.jit
def state_pass(
    k, W, U, log_alpha, state, ends, first_chunks, states, corrected, last_state,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Grid [N · H_V, ⌈D_V / COLUMNS⌉]. For each chunk, S being the state before it,

        U − W S        S ← γ_C S + Kᵀ diag(γ_C / γ) (U − W S)

    Without DELTA, for linear attention, U itself takes the place of U − W S; W and corrected are not used.
    Writes states: [chunks, H_V, D_K, D_V], each chunk's S; U − W S to corrected, like U: [tokens, H_V, D_V]; and
    last_state, like state: [N, H_V, D_K, D_V].
    ends: [N + 1], where the sequences' tokens end; first_chunks: [N + 1], alike, in chunks. ROWS ≥ D_K.
    """
    sequence_head, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    sequence, head = sequence_head // H_V, sequence_head % H_V
    key_head = head // (H_V // H)
    first_chunk, last_chunk = tl.load(first_chunks + sequence), tl.load(first_chunks + sequence + 1)
    start, end = tl.load(ends + sequence), tl.load(ends + sequence + 1)

    S = load_state(state, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
    for chunk in range(first_chunk, last_chunk):
        store_state(states, S, chunk * H_V + head, D_K, D_V, 0, column, ROWS, COLUMNS)
        length = tl.minimum(end - start, C)
        U_tile = load_tile(U, start, length, head, H_V, D_V, column, C, COLUMNS).to(tl.float32)
        if DELTA:
            W_tile = load_tile(W, start, length, head, H_V, D_K, 0, C, ROWS)
            U_tile -= product(W_tile, S, OPERAND, PRECISION)
            store_tile(corrected, U_tile, start, length, head, H_V, D_V, column, C, COLUMNS)

        K = load_tile(k, start, length, key_head, H, D_K, 0, C, ROWS)
        to_end = decay_to_end(log_alpha, start, length, head, H_V, C)
        gamma_C = tl.exp(tl.sum(load_gate(log_alpha, start, length, head, H_V, C), 0))
        S = gamma_C * S + exact_product(tl.trans(K), to_end[:, None] * U_tile, OPERAND, PRECISION)
        start += C
    store_state(last_state, S, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
