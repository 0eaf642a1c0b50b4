"""(iv) The gradients, from dO and the gradient of the last state: docs/derivation.md, chunk by chunk.

What forward made (states, W, U and now also T) has been made again. P = Γ ⊙ Q Kᵀ, S the state before a chunk, dS′ the
gradient of the one after it, dU that of its corrections, and Y = Tᵀ dU. No result of a product is ever transposed:
what is needed both ways is made both ways or read from memory both ways. Without DELTA they are those of linear
attention: its values take the place of U, and dU is the gradient of values.
"""

import triton
import triton.language as tl

from .triton_chunk import (
    decay_from_start,
    decay_mask,
    decay_mask_transposed,
    decay_to_end,
    exact_product,
    load_gate,
    load_state,
    load_tile,
    product,
    store_gate,
    store_state,
    store_tile,
)


@triton.jit
def correction_gradient(
    q, k, log_alpha, do, starts, lengths, dU,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, H_V, ⌈D_V / COLUMNS⌉]. Of the chunk's own outputs: writes Pᵀ dO to dU: [tokens, H_V, D_V]."""
    chunk, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * COLUMNS
    start, length = tl.load(starts + chunk), tl.load(lengths + chunk)
    if length == 0:
        return
    key_head = head // (H_V // H)

    KQ = tl.zeros((C, C), tl.float32)
    for first in range(0, D_K, WIDTH):
        Q = load_tile(q, start, length, key_head, H, D_K, first, C, WIDTH)
        K = load_tile(k, start, length, key_head, H, D_K, first, C, WIDTH)
        KQ += product(K, tl.trans(Q), OPERAND, PRECISION)
    P_transposed = decay_mask_transposed(load_gate(log_alpha, start, length, head, H_V, C), C) * KQ
    dO = load_tile(do, start, length, head, H_V, D_V, column, C, COLUMNS)
    store_tile(dU, product(P_transposed, dO, OPERAND, PRECISION), start, length, head, H_V, D_V, column, C, COLUMNS)


@triton.jit
def state_pass_backward(
    q, k, W, log_alpha, do, dlast_state, ends, first_chunks, dU, dstates, dstate,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Grid [N · H_V, ⌈D_V / COLUMNS⌉]. For each chunk, the last one first,

        dU ← dU + diag(γ_C / γ) K dS′        dS = γ_C dS′ + Qᵀ diag(γ) dO − Wᵀ dU

    Writes dstates: [chunks, H_V, D_K, D_V], each chunk's dS′, and dstate, like dlast_state: [N, H_V, D_K, D_V].
    """
    sequence_head, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    sequence, head = sequence_head // H_V, sequence_head % H_V
    key_head = head // (H_V // H)
    first_chunk, last_chunk = tl.load(first_chunks + sequence), tl.load(first_chunks + sequence + 1)
    first_token, end = tl.load(ends + sequence), tl.load(ends + sequence + 1)

    dS = load_state(dlast_state, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
    for back in range(0, last_chunk - first_chunk):
        chunk = last_chunk - 1 - back
        start = first_token + (chunk - first_chunk) * C
        length = tl.minimum(end - start, C)
        store_state(dstates, dS, chunk * H_V + head, D_K, D_V, 0, column, ROWS, COLUMNS)
        K = load_tile(k, start, length, key_head, H, D_K, 0, C, ROWS)
        dU_tile = load_tile(dU, start, length, head, H_V, D_V, column, C, COLUMNS).to(tl.float32)
        to_end = decay_to_end(log_alpha, start, length, head, H_V, C)
        dU_tile += to_end[:, None] * product(K, dS, OPERAND, PRECISION)
        store_tile(dU, dU_tile, start, length, head, H_V, D_V, column, C, COLUMNS)

        alpha_gate = load_gate(log_alpha, start, length, head, H_V, C)
        Q = load_tile(q, start, length, key_head, H, D_K, 0, C, ROWS)
        dO = load_tile(do, start, length, head, H_V, D_V, column, C, COLUMNS).to(tl.float32)
        dS = tl.exp(tl.sum(alpha_gate, 0)) * dS
        dS += product(tl.trans(Q), decay_from_start(alpha_gate)[:, None] * dO, OPERAND, PRECISION)
        if DELTA:
            W_tile = load_tile(W, start, length, head, H_V, D_K, 0, C, ROWS)
            dS -= product(tl.trans(W_tile), dU_tile, OPERAND, PRECISION)
    store_state(dstate, dS, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)


@triton.jit
def score_gradients(
    q, k, v, U, inverse, log_alpha, beta, do, starts, lengths, dU, dv, dQK, dKK, dlog_alpha, dbeta,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, WIDTH: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, H_V]. What goes through values and through the two matrices of scores,

        dU ← Y = Tᵀ dU        dV = diag(β) Y        dP = lower(dO Uᵀ)        dA = −strictLower(Y Uᵀ)

    Writes dv: [tokens, H_V, D_V]; Γ ⊙ dP and diag(β) Γ ⊙ dA, the gradients of Q Kᵀ and K Kᵀ: [tokens, H_V, C];
    and the gates' gradients by these ways: [tokens, H_V]. Without DELTA only Γ ⊙ dP and α's.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    start, length = tl.load(starts + chunk), tl.load(lengths + chunk)
    if length == 0:
        return
    key_head = head // (H_V // H)
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    beta_gate = load_gate(beta, start, length, head, H_V, C)
    if DELTA:
        T = load_tile(inverse, start, length, head, H_V, C, 0, C, C)

    dP, dA = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    dbeta_gate = tl.zeros((C,), tl.float32)
    for first in range(0, D_V, WIDTH):
        if DELTA:
            dU_tile = load_tile(dU, start, length, head, H_V, D_V, first, C, WIDTH)
            Y = exact_product(tl.trans(T), dU_tile, OPERAND, PRECISION)
            store_tile(dU, Y, start, length, head, H_V, D_V, first, C, WIDTH)
            store_tile(dv, beta_gate[:, None] * Y, start, length, head, H_V, D_V, first, C, WIDTH)
            V = load_tile(v, start, length, head, H_V, D_V, first, C, WIDTH)
            dbeta_gate += tl.sum(Y * V.to(tl.float32), 1)
        U_tile = load_tile(U, start, length, head, H_V, D_V, first, C, WIDTH).to(OPERAND)
        dO = load_tile(do, start, length, head, H_V, D_V, first, C, WIDTH)
        dP += product(dO, tl.trans(U_tile), OPERAND, PRECISION)
        if DELTA:
            dA -= product(Y, tl.trans(U_tile), OPERAND, PRECISION)

    QK, KK = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    for first in range(0, D_K, WIDTH):
        Q = load_tile(q, start, length, key_head, H, D_K, first, C, WIDTH)
        K = load_tile(k, start, length, key_head, H, D_K, first, C, WIDTH)
        QK += product(Q, tl.trans(K), OPERAND, PRECISION)
        if DELTA:
            KK += product(K, tl.trans(K), OPERAND, PRECISION)

    Gamma = decay_mask(load_gate(log_alpha, start, length, head, H_V, C), C)
    of_QK = Gamma * dP
    store_tile(dQK, of_QK, start, length, head, H_V, C, 0, C, C)
    of_decays = of_QK * QK
    if DELTA:
        of_KK = tl.where(i > j, Gamma * dA, 0.0)
        dbeta_gate += tl.sum(of_KK * KK, 1)
        of_KK *= beta_gate[:, None]
        store_tile(dKK, of_KK, start, length, head, H_V, C, 0, C, C)
        store_gate(dbeta, dbeta_gate, start, length, head, H_V, C)
        of_decays += of_KK * KK

    # α_m is in every Γ_ij with j < m ≤ i: a sum over a rectangle, in which nothing cancels
    by_rows = tl.cumsum(tl.where(i > j, of_decays, 0.0), 0, reverse=True)
    store_gate(dlog_alpha, tl.sum(tl.where(i > j, by_rows, 0.0), 1), start, length, head, H_V, C)


@triton.jit
def key_gradients(
    q, k, U, log_alpha, beta, do, states, starts, lengths, Y, dstates, dQK, dKK, dq, dk, dlog_alpha, dbeta, tokens,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, H_V, ⌈D_K / WIDTH⌉]. What goes through queries, keys and states,

        dQ = diag(γ) dO Sᵀ + (Γ ⊙ dP) K
        dK = (Γ ⊙ dP)ᵀ Q + (B + Bᵀ) K + diag(γ_C / γ) U dS′ᵀ − diag(βγ) Y Sᵀ        B = diag(β) Γ ⊙ dA

    Writes dq, dk: [tokens, H_V, D_K], of each value head, and each tile's part of the gates' gradients,
    [1 + ⌈D_K / WIDTH⌉, tokens, H_V], behind that of `score_gradients`.
    """
    chunk, head, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * WIDTH
    start, length = tl.load(starts + chunk), tl.load(lengths + chunk)
    if length == 0:
        return
    key_head, chunk_head = head // (H_V // H), chunk.to(tl.int64) * H_V + head
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]

    dQ, S_dS = tl.zeros((C, WIDTH), tl.float32), tl.zeros((WIDTH,), tl.float32)
    YS, UdS = tl.zeros((C, WIDTH), tl.float32), tl.zeros((C, WIDTH), tl.float32)
    for first in range(0, D_V, COLUMNS):
        S = load_state(states, chunk_head, D_K, D_V, column, first, WIDTH, COLUMNS)
        dS = load_state(dstates, chunk_head, D_K, D_V, column, first, WIDTH, COLUMNS)
        S_dS += tl.sum(S.to(tl.float32) * dS.to(tl.float32), 1)
        dO = load_tile(do, start, length, head, H_V, D_V, first, C, COLUMNS)
        dQ += product(dO, tl.trans(S), OPERAND, PRECISION)
        if DELTA:
            Y_tile = load_tile(Y, start, length, head, H_V, D_V, first, C, COLUMNS)
            YS += product(Y_tile, tl.trans(S), OPERAND, PRECISION)
        U_tile = load_tile(U, start, length, head, H_V, D_V, first, C, COLUMNS).to(OPERAND)
        UdS += product(U_tile, tl.trans(dS), OPERAND, PRECISION)

    alpha_gate = load_gate(log_alpha, start, length, head, H_V, C)
    beta_gate = load_gate(beta, start, length, head, H_V, C)
    gamma, to_end = decay_from_start(alpha_gate), decay_to_end(log_alpha, start, length, head, H_V, C)
    Q = load_tile(q, start, length, key_head, H, D_K, column, C, WIDTH)
    K = load_tile(k, start, length, key_head, H, D_K, column, C, WIDTH)
    dQ *= gamma[:, None]
    from_start = tl.sum(Q.to(tl.float32) * dQ, 1)
    dK = to_end[:, None] * UdS
    until_end = tl.sum(K.to(tl.float32) * dK, 1)
    if DELTA:
        KYS = gamma * tl.sum(K.to(tl.float32) * YS, 1)
        from_start -= beta_gate * KYS
        dK -= (beta_gate * gamma)[:, None] * YS

    # α_m is in every γ_i with m ≤ i, in every γ_C / γ_j with j < m, and in γ_C
    dalpha = tl.exp(tl.sum(alpha_gate, 0)) * tl.sum(S_dS, 0) + tl.cumsum(from_start, 0, reverse=True)
    dalpha += tl.sum(tl.where(j < i, until_end[None, :], 0.0), 1)
    part = (1 + tl.program_id(2)) * tokens * H_V
    store_gate(dlog_alpha + part, dalpha, start, length, head, H_V, C)
    of_QK = load_tile(dQK, start, length, head, H_V, C, 0, C, C)
    dQ += product(of_QK, K, OPERAND, PRECISION)
    dK += product(tl.trans(of_QK), Q, OPERAND, PRECISION)
    if DELTA:
        store_gate(dbeta + part, -KYS, start, length, head, H_V, C)
        of_KK = load_tile(dKK, start, length, head, H_V, C, 0, C, C)
        dK += product(of_KK, K, OPERAND, PRECISION) + product(tl.trans(of_KK), K, OPERAND, PRECISION)
    store_tile(dq, dQ, start, length, head, H_V, D_K, column, C, WIDTH)
    store_tile(dk, dK, start, length, head, H_V, D_K, column, C, WIDTH)
