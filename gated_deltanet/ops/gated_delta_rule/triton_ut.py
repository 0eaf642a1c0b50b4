"""(i) The UT transform of every chunk, all in parallel: what its corrections are before and because of the state.

With A = strictLower(diag(β) (Γ ⊙ K Kᵀ)) and T = (I + A)⁻¹, the corrections of a chunk that begins with state S are
T diag(β) V − T diag(βγ) K S = U − W S.
"""

import triton
import triton.language as tl

from .triton_chunk import (
    decay_from_start,
    decay_mask,
    exact_product,
    load_gate,
    load_tile,
    product,
    store_tile,
    unit_lower_inverse,
)


@triton.jit
def ut_transform(
    k, v, log_alpha, beta, starts, lengths, W, U, inverse,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    C: tl.constexpr, WIDTH: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, H_V]. Writes W: [tokens, H_V, D_K], U: [tokens, H_V, D_V]; if KEEP also T: [tokens, H_V, C].

    k: [tokens, H, D_K], v: [tokens, H_V, D_V], log_alpha, beta: [tokens, H_V], starts, lengths: [chunks].
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    start, length = tl.load(starts + chunk), tl.load(lengths + chunk)
    if length == 0:
        return
    key_head = head // (H_V // H)
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]

    KK = tl.zeros((C, C), tl.float32)
    for first in range(0, D_K, WIDTH):
        K = load_tile(k, start, length, key_head, H, D_K, first, C, WIDTH)
        KK += product(K, tl.trans(K), OPERAND, PRECISION)

    alpha_gate = load_gate(log_alpha, start, length, head, H_V, C)
    beta_gate = load_gate(beta, start, length, head, H_V, C)
    A = tl.where(i > j, beta_gate[:, None] * decay_mask(alpha_gate, C) * KK, 0.0)
    T = unit_lower_inverse(A, C, PRECISION)
    if KEEP:
        store_tile(inverse, T, start, length, head, H_V, C, 0, C, C)

    others = tl.where(i > j, T * beta_gate[None, :], 0.0)  # a token's own value, with T_ii = 1, is not rounded
    for first in range(0, D_V, WIDTH):
        V = load_tile(v, start, length, head, H_V, D_V, first, C, WIDTH)
        U_tile = beta_gate[:, None] * V.to(tl.float32) + exact_product(others, V, OPERAND, PRECISION)
        store_tile(U, U_tile, start, length, head, H_V, D_V, first, C, WIDTH)
    of_keys = T * (beta_gate * decay_from_start(alpha_gate))[None, :]
    for first in range(0, D_K, WIDTH):
        K = load_tile(k, start, length, key_head, H, D_K, first, C, WIDTH)
        store_tile(W, exact_product(of_keys, K, OPERAND, PRECISION), start, length, head, H_V, D_K, first, C, WIDTH)
