"""A chunk of a sequence as the kernels of section 3.3 see it: its tiles in memory, its decays, its triangular system.

Tokens lie as [tokens, heads, d], all sequences one behind the other. A chunk is `length` ≤ C of them from `start` on.
What lies outside, rows after the last token and columns after d, is read as zero and not written.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    x, start, length, head, HEADS: tl.constexpr, D: tl.constexpr, first, C: tl.constexpr, WIDTH: tl.constexpr
):
    """[C, WIDTH]: of a head's tokens the columns from `first` on. x: [tokens, HEADS, D]."""
    row, column = tl.arange(0, C), first + tl.arange(0, WIDTH)
    x += (start * HEADS + head) * D
    inside = (row < length)[:, None] & (column < D)[None, :]
    return tl.load(x + row[:, None] * (HEADS * D) + column[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(
    x, tile, start, length, head, HEADS: tl.constexpr, D: tl.constexpr, first, C: tl.constexpr, WIDTH: tl.constexpr
):
    row, column = tl.arange(0, C), first + tl.arange(0, WIDTH)
    x += (start * HEADS + head) * D
    inside = (row < length)[:, None] & (column < D)[None, :]
    tl.store(x + row[:, None] * (HEADS * D) + column[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def load_gate(x, start, length, head, HEADS: tl.constexpr, C: tl.constexpr):
    """[C] of x: [tokens, HEADS], float32."""
    row = tl.arange(0, C)
    return tl.load(x + start * HEADS + head + row * HEADS, mask=row < length, other=0.0)


@triton.jit
def store_gate(x, gate, start, length, head, HEADS: tl.constexpr, C: tl.constexpr):
    row = tl.arange(0, C)
    tl.store(x + start * HEADS + head + row * HEADS, gate, mask=row < length)


@triton.jit
def load_state(S, head, D_K: tl.constexpr, D_V: tl.constexpr, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] from row and column on of S[head]: [heads, D_K, D_V]. head: of all sequences or chunks, int64."""
    k, v = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    inside = (k < D_K)[:, None] & (v < D_V)[None, :]
    return tl.load(S + head * (D_K * D_V) + k[:, None] * D_V + v[None, :], mask=inside, other=0.0)


@triton.jit
def store_state(
    S, tile, head, D_K: tl.constexpr, D_V: tl.constexpr, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    k, v = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    inside = (k < D_K)[:, None] & (v < D_V)[None, :]
    tl.store(S + head * (D_K * D_V) + k[:, None] * D_V + v[None, :], tile.to(S.dtype.element_ty), mask=inside)


@triton.jit
def decay_from_start(log_alpha):
    """γ: [C], the decay from before the chunk to each token."""
    return tl.exp(tl.cumsum(log_alpha, 0))


@triton.jit
def decay_to_end(log_alpha, start, length, head, HEADS: tl.constexpr, C: tl.constexpr):
    """γ_C / γ: [C], the decay from each token to the chunk's last, from sums of its own terms. log_alpha: the gate."""
    following = load_gate(log_alpha, start + 1, length - 1, head, HEADS, C)
    return tl.exp(tl.cumsum(following, 0, reverse=True))


@triton.jit
def decay_mask(log_alpha, C: tl.constexpr):
    """Γ: [C, C], Γ_ij = α_{j+1} ⋯ α_i for i ≥ j, else 0. Each is a sum of its own terms: exact at α = 0."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    sums = tl.cumsum(tl.where(i > j, log_alpha[:, None], 0.0), 0)
    return tl.where(i >= j, tl.exp(sums), 0.0)


@triton.jit
def decay_mask_transposed(log_alpha, C: tl.constexpr):
    """Γᵀ, made as such."""
    j, i = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    sums = tl.cumsum(tl.where(i > j, log_alpha[None, :], 0.0), 1)
    return tl.where(i >= j, tl.exp(sums), 0.0)


@triton.jit
def product(a, b, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """a b: operands rounded to OPERAND, the sum in float32."""
    return tl.dot(a.to(OPERAND), b.to(OPERAND), input_precision=PRECISION)


@triton.jit
def exact_product(a, b, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """a b of operands that may be float32: what rounding them to OPERAND leaves is multiplied, too.

    Where keys are much alike T has entries as large as 2 of both signs, and roundings of 2⁻⁹ would show.
    """
    whole = product(a, b, OPERAND, PRECISION)
    if a.dtype != OPERAND:
        whole += product(a - a.to(OPERAND).to(tl.float32), b, OPERAND, PRECISION)
    if b.dtype != OPERAND:
        whole += product(a, b - b.to(OPERAND).to(tl.float32), OPERAND, PRECISION)
    return whole


@triton.jit
def unit_lower_inverse(A, C: tl.constexpr, PRECISION: tl.constexpr):
    """T = (I + A)⁻¹ for A strictly lower triangular, [C, C], float32.

    By substitution in its 16 × 16 tiles on the diagonal, all at once; then tiles are merged in pairs.
    """
    n: tl.constexpr = C // 16
    diagonal = tl.arange(0, n)[:, None, None, None] == tl.arange(0, n)[None, None, :, None]
    tiles = tl.sum(tl.where(diagonal, tl.reshape(A, (n, 16, n, 16)), 0.0), 2)  # [n, 16, 16]
    row, column = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    T = tl.where(row == column, 1.0, 0.0) + tl.zeros((n, 16, 16), tl.float32)
    for i in range(1, 16):
        A_i = tl.sum(tl.where(row == i, tiles, 0.0), 1)  # [n, 16]
        T -= tl.where(row == i, tl.sum(A_i[:, :, None] * T, 1)[:, None, :], 0.0)

    T = tl.reshape(tl.where(diagonal, T[:, :, None, :], 0.0), (C, C))
    if C > 16:
        T = merge_tiles(T, A, 16, C, PRECISION)
    if C > 32:
        T = merge_tiles(T, A, 32, C, PRECISION)
    return T


@triton.jit
def merge_tiles(T, A, SIZE: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr):
    """The inverses of pairs of tiles of SIZE, since that of [[P, 0], [R, Q]] is [[P⁻¹, 0], [−Q⁻¹ R P⁻¹, Q⁻¹]]."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    R = tl.where((i // (2 * SIZE) == j // (2 * SIZE)) & (i // SIZE != j // SIZE), A, 0.0)
    return T - tl.dot(tl.dot(T, R, input_precision=PRECISION), T, input_precision=PRECISION)
