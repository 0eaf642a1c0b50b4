// One chunk of the gated delta rule: docs/derivation.md, "One chunk". Shared by forward and backward.
#pragma once
#include "activation.h"
#include "api.h"

namespace GDN_ISA {

constexpr int C = 16;                 // tokens in a chunk
constexpr int CHECKPOINT = 8 * C;     // tokens between the states kept for backward
constexpr int UPDATE_M = 2 * TILE_M;  // rows of the tile that updates the state, one vector wide
constexpr float EPS = 1e-6f;          // under the root of a key's length, as in gated_delta_mix

// Sizes padded to whole tiles; the padding is zero and stays zero.
struct Sizes {
    long d_k, d_v, dk, dv, panels;
    Sizes(long d_k, long d_v)
        : d_k(d_k), d_v(d_v), dk(round_up(d_k, 16)), dv(round_up(d_v, PANEL)), panels(dv / PANEL) {}
};

// Takes arrays one after another from a thread's scratch memory; with no memory it only counts.
struct Take {
    float *memory;
    size_t used = 0;
    float *operator()(size_t floats) {
        float *p = memory ? memory + used : nullptr;
        used += round_up(floats, 16);
        return p;
    }
};

// The decays of a chunk, built by rows: Γ_i = α_i Γ_{i−1}, Γ_ii = 1. No quotient, exact at α = 0.
struct Decay {
    float *Gamma, *gamma, *beta;  // [C, C], [C], [C]
    explicit Decay(Take &take) : Gamma(take(C * C)), gamma(take(C)), beta(take(C)) {}
    const float *to_end() const { return Gamma + (C - 1) * C; }  // γ_C / γ

    // Tokens behind the last do nothing: α = 1, β = 0. Linear attention has no β: it is 1.
    void fill(const Rule &r, long first, long head, long tokens) {
        const float *log_alpha = (const float *)r.log_alpha.data + first * r.log_alpha.token + head * r.log_alpha.head;
        const float *beta_in = (const float *)r.beta.data + first * r.beta.token + head * r.beta.head;
        float alpha[C], product = 1;
        for (int i = 0; i < C; i++) alpha[i] = i < tokens ? log_alpha[i * r.log_alpha.token] : 0;
        for (int i = 0; i < C; i++) beta[i] = i >= tokens ? 0 : r.beta.data ? beta_in[i * r.beta.token] : 1;
        UNROLL for (int j = 0; j < C; j += W) store(alpha + j, exp(load(alpha + j)));
        vec row[C / W] = {};
        UNROLL for (int i = 0; i < C; i++) {
            gamma[i] = product *= alpha[i];
            UNROLL for (int j = 0; j < C / W; j++) row[j] *= alpha[i];
            row[i / W][i % W] = 1;
            UNROLL for (int j = 0; j < C / W; j++) store(Gamma + i * C + j * W, row[j]);
        }
    }
};

// X Kᵀ, as far as it is lower triangular: [C, C] from X: [C, d_k] of these strides and Kt: [dk, C].
KERNEL inline void lower_product(const float *X, long row, long column, const float *Kt, float *out, const Sizes &s,
                                 long rows) {
    for (long i = 0; i < rows; i += UPDATE_M)
        for (long j = 0; j < i + UPDATE_M; j += W) {
            Tile<UPDATE_M, 1> t;
            t.zero();
            t.add_product(X + i * row, row, column, Kt + j, C, s.d_k);
            t.store_to(out + i * C + j, C);
        }
}

// The next chunk's rows, asked for a few cache lines at a time while this chunk is computed: more at once would stall.
struct Ahead {
    struct Block {
        const char *row;
        long stride, lines;
    } blocks[8];
    int count = 0, block = 0, share = 0;
    long rows = 0, left = 0;
    const char *line = nullptr;

    // `heads` neighbouring heads of the tokens from `first` on.
    template <class T> void add(const Rows &x, long first, long head, long heads, long d) {
        blocks[count++] = {(const char *)((const T *)x.data + first * x.token + head * x.head),
                           x.token * long(sizeof(T)), (((heads - 1) * x.head + d) * long(sizeof(T)) + 63) / 64};
    }
    // To be asked for in so many calls.
    void spread(long tokens, long calls) {
        long lines = 0;
        for (int b = 0; b < count; b++) lines += tokens * blocks[b].lines;
        rows = tokens, share = lines / (calls + 1) + 1, line = blocks[0].row, left = blocks[0].lines;
    }
    INLINE void ask() {
        for (int n = 0; n < share && rows > 0; n++) {
            __builtin_prefetch(line, 0, 2);
            line += 64;
            if (--left == 0) turn();
        }
    }
    KERNEL void turn() {
        blocks[block].row += blocks[block].stride;
        if (++block == count) block = 0, rows--;
        line = blocks[block].row, left = blocks[block].lines;
    }
};

// Key heads a task takes together: neighbours lie side by side in memory, tokens a page apart. As many tasks as
// threads, or enough of them to even out.
inline long heads_per_task(const Rule &r, long heads) {
    for (long together = 8; together > 1; together /= 2) {
        long tasks = r.N * heads / together;
        if (heads % together == 0 && (tasks >= 4 * r.threads || (tasks && tasks % r.threads == 0))) return together;
    }
    return 1;
}

// Reads the rows of one head into [rows, padded]; those behind the last token are zero.
template <class T>
void read_rows(const Rows &x, long first, long head, long tokens, long d, long padded, float *to, long rows = C) {
    for (long i = 0; i < tokens; i++)
        widen_row((const T *)x.data + (first + i) * x.token + head * x.head, to + i * padded, d, padded);
    if (tokens < rows) std::memset(to + tokens * padded, 0, (rows - tokens) * padded * sizeof(float));
}

// A register tile to and from rows of an operand; rows behind the last token and columns behind d_v are left out.
template <class T, int M, int N> INLINE void read_tile(Tile<M, N> &t, const T *x, long stride, long rows, long columns) {
    if (rows >= M && columns >= N * W) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) t.c[m][n] = load(x + m * stride + n * W);
        return;
    }
    float padded[M][N * W] = {};
    for (long m = 0; m < M && m < rows; m++)
        for (long j = 0; j < N * W && j < columns; j++) padded[m][j] = widen(x[m * stride + j]);
    t.load_from(padded[0], N * W);
}
template <class T, int M, int N>
INLINE void write_tile(const Tile<M, N> &t, T *x, long stride, long rows, long columns) {
    if (rows >= M && columns >= N * W) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) store(x + m * stride + n * W, t.c[m][n]);
        return;
    }
    float padded[M][N * W];
    t.store_to(padded[0], N * W);
    for (long m = 0; m < M && m < rows; m++)
        for (long j = 0; j < N * W && j < columns; j++) narrow(padded[m][j], x + m * stride + j);
}

// A state [d_k, d_v] as panels [panels, dk, PANEL], and back.
inline void read_state(const float *state, const Sizes &s, float *S) {
    for (long p = 0; p < s.panels; p++) {
        long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
        for (long k = 0; k < s.dk; k++)
            widen_row(state + k * s.d_v + p * PANEL, S + (p * s.dk + k) * PANEL, k < s.d_k ? columns : 0, PANEL);
    }
}
inline void write_state(const float *S, const Sizes &s, float *state) {
    for (long p = 0; p < s.panels; p++) {
        long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
        for (long k = 0; k < s.d_k; k++)
            std::memcpy(state + k * s.d_v + p * PANEL, S + (p * s.dk + k) * PANEL, columns * sizeof(float));
    }
}

// x / √(‖x‖² + EPS) · scale for each row; keeps the factors.
inline void normalise_rows(float *X, const Sizes &s, long tokens, float scale, float *factor) {
    for (long i = 0; i < tokens; i++) {
        float *x = X + i * s.dk;
        vec squares = {};
        for (long k = 0; k < s.dk; k += W) squares += load(x + k) * load(x + k);
        factor[i] = scale / std::sqrt(sum(squares) + EPS);
        for (long k = 0; k < s.dk; k += W) store(x + k, load(x + k) * factor[i]);
    }
}

// S' = γ_C S + Kᵀ X for one panel: X: [C, PANEL] is diag(γ_C / γ) U. S and S' may be the same.
KERNEL inline void update_panel(const float *S, float *S_next, const float *K, const float *X, float gamma_C,
                                const Sizes &s, long rows, Ahead &ahead) {
    for (long k = 0; k < s.dk; k += UPDATE_M) {
        UNROLL for (int n = 0; n < TILE_N; n++) {
            ahead.ask();
            Tile<UPDATE_M, 1> t;
            t.load_from(S + k * PANEL + n * W, PANEL);
            t.scale(gamma_C);
            t.add_product(K + k, 1, s.dk, X + n * W, PANEL, rows);
            t.store_to(S_next + k * PANEL + n * W, PANEL);
        }
    }
}

}  // namespace GDN_ISA
