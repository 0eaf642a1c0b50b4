// One chunk of the gated delta rule: docs/derivation.md, "One chunk". Shared by forward and backward.
#pragma once
#include "api.h"
#include "simd.h"

namespace GDN_ISA {

constexpr int C = 16;                    // tokens in a chunk
constexpr int CHECKPOINT = 8 * C;      // tokens between the states kept for backward
constexpr int UPDATE_M = 2 * TILE_M;    // rows of the tile that updates the state, one vector wide
constexpr float EPS = 1e-6f;             // under the root of a key's length, as in gated_delta_mix

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
        float product = 1;
        vec row[C / W] = {};
        for (int i = 0; i < C; i++) {
            float alpha = i < tokens ? std::exp(log_alpha[i * r.log_alpha.token]) : 1;
            beta[i] = i >= tokens ? 0 : r.beta.data ? beta_in[i * r.beta.token] : 1;
            gamma[i] = product *= alpha;
            UNROLL for (int j = 0; j < C / W; j++) store(Gamma + i * C + j * W, row[j] *= alpha);
            Gamma[i * C + i] = 1;
            UNROLL for (int j = 0; j < C / W; j++) row[j] = load(Gamma + i * C + j * W);
        }
    }
};

// [rows of X] Kᵀ, as far as it is lower triangular: [C, C] from X: [C, dk] and Kt: [dk, C].
KERNEL inline void lower_product(const float *X, const float *Kt, float *out, const Sizes &s, long rows) {
    for (long i = 0; i < rows; i += UPDATE_M)
        for (long j = 0; j < i + UPDATE_M; j += W) {
            Tile<UPDATE_M, 1> t;
            t.zero();
            t.add_product(X + i * s.dk, s.dk, 1, Kt + j, C, s.d_k);
            t.store_to(out + i * C + j, C);
        }
}

// The next chunk's rows, asked for a few cache lines at a time while this chunk is computed: more at once would stall.
struct Ahead {
    struct Block {
        const char *row;
        long stride, bytes;
    } blocks[8];
    int count = 0, block = 0, share = 0;
    long rows = 0, byte = 0;

    // `heads` neighbouring heads of the tokens from `first` on.
    template <class T> void add(const Rows &x, long first, long head, long heads, long d) {
        blocks[count++] = {(const char *)((const T *)x.data + first * x.token + head * x.head),
                           x.token * long(sizeof(T)), ((heads - 1) * x.head + d) * long(sizeof(T))};
    }
    // To be asked for in so many calls.
    void spread(long tokens, long calls) {
        long lines = 0;
        for (int b = 0; b < count; b++) lines += tokens * ((blocks[b].bytes + 63) / 64);
        rows = tokens, share = lines / (calls + 1) + 1;
    }
    INLINE void ask() {
        for (int n = 0; n < share && rows > 0; n++) {
            Block &b = blocks[block];
            __builtin_prefetch(b.row + byte, 0, 1);
            if ((byte += 64) < b.bytes) continue;
            byte = 0;
            b.row += b.stride;
            if (++block == count) block = 0, rows--;
        }
    }
};

// Reads the rows of some neighbouring heads into [heads, C, padded]; tokens behind the last are zero. Token by token:
// neighbours lie side by side in memory, tokens a page apart.
template <class T>
void read_rows(const Rows &x, long first, long head, long heads, long tokens, long d, long padded, float *to) {
    for (long i = 0; i < tokens; i++)
        for (long h = 0; h < heads; h++)
            widen_row((const T *)x.data + (first + i) * x.token + (head + h) * x.head, to + (h * C + i) * padded, d, padded);
    if (tokens < C)
        for (long h = 0; h < heads; h++) std::memset(to + (h * C + tokens) * padded, 0, (C - tokens) * padded * sizeof(float));
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
        ahead.ask();
        UNROLL for (int n = 0; n < TILE_N; n++) {
            Tile<UPDATE_M, 1> t;
            t.load_from(S + k * PANEL + n * W, PANEL);
            t.scale(gamma_C);
            t.add_product(K + k, 1, s.dk, X + n * W, PANEL, rows);
            t.store_to(S_next + k * PANEL + n * W, PANEL);
        }
    }
}

}  // namespace GDN_ISA
