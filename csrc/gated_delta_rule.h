// One chunk of the gated delta rule: docs/derivation.md, "One chunk". Shared by forward and backward.
#pragma once
#include "activation.h"
#include "chunks.h"

namespace GDN_ISA {

constexpr float EPS = 1e-6f;  // under the root of a key's length, as in gated_delta_mix

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
