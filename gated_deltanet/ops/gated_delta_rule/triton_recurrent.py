"""The gated delta rule on a GPU token by token: decoding, with the state in place, and short sequences.

A program holds some columns of a state in registers, in float32, and goes from token to token: nothing is read or
written twice. Norms, scale and gates of `gated_delta_mix` are made inside, so a decoded token is one launch.
"""

import triton
import triton.language as tl

from .triton_chunk import load_state, store_state


@triton.jit
def load_row(x, row, D: tl.constexpr, first, WIDTH: tl.constexpr):
    """[WIDTH] from `first` on of x[row]: [rows, D], in float32."""
    column = first + tl.arange(0, WIDTH)
    return tl.load(x + row * D + column, mask=column < D, other=0.0).to(tl.float32)


@triton.jit
def store_row(x, values, row, D: tl.constexpr, first, WIDTH: tl.constexpr):
    column = first + tl.arange(0, WIDTH)
    tl.store(x + row * D + column, values.to(x.dtype.element_ty), mask=column < D)


@triton.jit
def load_keys(q, k, row, D_K: tl.constexpr, ROWS: tl.constexpr, MIX: tl.constexpr):
    """q and k of a token and head; if MIX q / ‖q‖ · d_k^−½ and k / ‖k‖."""
    Q, K = load_row(q, row, D_K, 0, ROWS), load_row(k, row, D_K, 0, ROWS)
    if MIX:
        Q *= tl.rsqrt((tl.sum(Q * Q, 0) + 1e-6) * D_K)
        K *= tl.rsqrt(tl.sum(K * K, 0) + 1e-6)
    return Q, K


@triton.jit
def load_gates(log_alpha, beta, A_log, dt_bias, beta_max, row, head, MIX: tl.constexpr):
    """α and β of a token and head; if MIX log α = −exp(A_log) softplus(a + dt_bias) and β = beta_max · σ(b)."""
    a, b = tl.load(log_alpha + row).to(tl.float32), tl.load(beta + row).to(tl.float32)
    if MIX:
        a += tl.load(dt_bias + head).to(tl.float32)
        a = -tl.exp(tl.load(A_log + head).to(tl.float32)) * (tl.maximum(a, 0.0) + log1p(tl.exp(-tl.abs(a))))
        b = beta_max / (1.0 + tl.exp(-b))
    return tl.exp(a), b


@triton.jit
def log1p(x):
    """log(1 + x) for x ≥ 0: what 1 + x rounds off is put back."""
    rounded = 1.0 + x
    return tl.where(rounded == 1.0, x, tl.log(rounded) * (x / tl.where(rounded == 1.0, 1.0, rounded - 1.0)))


@triton.jit
def recurrence(
    q, k, v, log_alpha, beta, A_log, dt_bias, state, ends, o, last_state, checkpoints, L, beta_max,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPAN: tl.constexpr, PACKED: tl.constexpr, MIX: tl.constexpr, KEEP: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Grid [N · H_V, ⌈D_V / COLUMNS⌉]. For each token, in order,

        S ← α S        u = β (v − kᵀ S)        S ← S + k uᵀ        o = qᵀ S

    Writes o, like v: [tokens, H_V, D_V], and last_state, like state: [N, H_V, D_K, D_V], which it may be. If KEEP
    instead the state before every SPAN tokens to checkpoints: [tokens // SPAN + N, H_V, D_K, D_V]. ROWS ≥ D_K.
    ends: [N + 1], where the sequences' tokens end, if PACKED; else each has L. Without DELTA u = v: linear attention.
    """
    sequence_head, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    sequence, head = sequence_head // H_V, sequence_head % H_V
    key_head = head // (H_V // H)
    start = tl.load(ends + sequence) if PACKED else sequence * L
    length = tl.load(ends + sequence + 1) - start if PACKED else L

    S = load_state(state, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
    for t in range(0, length):
        if KEEP and t % SPAN == 0:
            span = start // SPAN + sequence + t // SPAN
            store_state(checkpoints, S, span * H_V + head, D_K, D_V, 0, column, ROWS, COLUMNS)
        row = (start + t) * H_V + head
        Q, K = load_keys(q, k, (start + t) * H + key_head, D_K, ROWS, MIX)
        alpha_t, beta_t = load_gates(log_alpha, beta, A_log, dt_bias, beta_max, row, head, MIX)
        u = load_row(v, row, D_V, column, COLUMNS)
        S *= alpha_t
        if DELTA:
            u = beta_t * (u - tl.sum(K[:, None] * S, 0))
        S += K[:, None] * u[None, :]
        if not KEEP:
            store_row(o, tl.sum(Q[:, None] * S, 0), row, D_V, column, COLUMNS)
    if not KEEP:
        store_state(last_state, S, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)


@triton.jit
def recurrence_backward(
    q, k, v, log_alpha, beta, checkpoints, ends, do, dlast_state, states, dq, dk, dv, dlog_alpha, dbeta, dstate, L,
    tokens,
    H: tl.constexpr, H_V: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPAN: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Grid [N · H_V, ⌈D_V / COLUMNS⌉]. For each token, the last one first, S being the decayed state before it,

        dS ← dS + q doᵀ        w = β kᵀ dS        dq = (S + k uᵀ) do        dk = dS u − S w        dv = w
        dS ← dS − k wᵀ         dlog α = ⟨S, dS⟩        dS ← α dS

    The states within SPAN tokens are made again from their checkpoint, in states: [N · H_V, SPAN, D_K, D_V].
    Writes dv, dstate, and the parts of each tile of columns of dq, dk: [tiles, tokens, H_V, D_K], of each value head,
    and of dlog_alpha, dbeta: [tiles, tokens, H_V].
    """
    sequence_head, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    sequence, head = sequence_head // H_V, sequence_head % H_V
    key_head, part = head // (H_V // H), tl.program_id(1).to(tl.int64) * tokens * H_V
    start = tl.load(ends + sequence) if PACKED else sequence * L
    length = tl.load(ends + sequence + 1) - start if PACKED else L

    dS = load_state(dlast_state, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
    spans = tl.cdiv(length, SPAN)
    for back in range(0, spans):
        first = (spans - 1 - back) * SPAN
        count = tl.minimum(length - first, SPAN)
        checkpoint = (start // SPAN + sequence + first // SPAN) * H_V + head
        S = load_state(checkpoints, checkpoint, D_K, D_V, 0, column, ROWS, COLUMNS)
        for i in range(0, count):
            row = (start + first + i) * H_V + head
            S *= tl.exp(tl.load(log_alpha + row))
            store_state(states, S, sequence_head * SPAN + i, D_K, D_V, 0, column, ROWS, COLUMNS)
            K = load_row(k, (start + first + i) * H + key_head, D_K, 0, ROWS)
            V = load_row(v, row, D_V, column, COLUMNS)
            S += K[:, None] * (tl.load(beta + row) * (V - tl.sum(K[:, None] * S, 0)))[None, :]
        tl.debug_barrier()  # what a thread stored another may load
        for i in range(0, count):
            t = first + count - 1 - i
            row = (start + t) * H_V + head
            Q, K = load_keys(q, k, (start + t) * H + key_head, D_K, ROWS, False)
            V, dO = load_row(v, row, D_V, column, COLUMNS), load_row(do, row, D_V, column, COLUMNS)
            beta_t = tl.load(beta + row)
            S = load_state(states, sequence_head * SPAN + t - first, D_K, D_V, 0, column, ROWS, COLUMNS)
            missing = V - tl.sum(K[:, None] * S, 0)
            u = beta_t * missing
            store_row(dq, tl.sum((S + K[:, None] * u[None, :]) * dO[None, :], 1), part + row, D_K, 0, ROWS)
            dS += Q[:, None] * dO[None, :]
            du = tl.sum(K[:, None] * dS, 0)
            w = beta_t * du
            store_row(dk, tl.sum(dS * u[None, :] - S * w[None, :], 1), part + row, D_K, 0, ROWS)
            store_row(dv, w, row, D_V, column, COLUMNS)
            tl.store(dbeta + part + row, tl.sum(du * missing, 0))
            dS -= K[:, None] * w[None, :]
            tl.store(dlog_alpha + part + row, tl.sum(tl.sum(S * dS, 1), 0))
            dS *= tl.exp(tl.load(log_alpha + row))
        tl.debug_barrier()
    store_state(dstate, dS, sequence_head, D_K, D_V, 0, column, ROWS, COLUMNS)
