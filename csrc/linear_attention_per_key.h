// One chunk of linear attention with a decay per token and key, shared by forward and backward. Decays are only
// multiplied, never divided: α = 0 is exact.
#pragma once
#include "activation.h"
#include "gated_delta_rule.h"

namespace GDN_ISA {

// Σ over each of W vectors.
INLINE vec sums(const float *x) {
    float block[W * W];
    transpose_block(x, W, block, W);
    vec total = load(block);
    UNROLL for (int i = 1; i < W; i++) total += load(block + i * W);
    return total;
}

// [C, dk] each. Tokens behind the last do nothing: α = 1, and their rows of K and Q are zero.
struct KeyDecay {
    float *alpha, *gamma;     // γ_i = α_i γ_{i−1}
    float *K_right, *Q_left;  // K decayed to the chunk's end, γ ⊙ Q
    KeyDecay(Take &take, const Sizes &s)
        : alpha(take(C * s.dk)), gamma(take(C * s.dk)), K_right(take(C * s.dk)), Q_left(take(C * s.dk)) {}
    const float *gamma_C(const Sizes &s) const { return gamma + (C - 1) * s.dk; }

    void fill(const Rule &r, const Sizes &s, long first, long head, long tokens, const float *K, const float *Q) {
        read_rows<float>(r.log_alpha, first, head, tokens, s.d_k, s.dk, alpha);
        for (long k = 0; k < s.dk; k += W) {
            vec product = broadcast(1);
            for (long at = k; at < C * s.dk; at += s.dk) {
                vec alpha_i = exp(load(alpha + at));
                store(alpha + at, alpha_i);
                store(gamma + at, product *= alpha_i);
                store(Q_left + at, product * load(Q + at));
            }
            product = broadcast(1);
            for (long at = (C - 1) * s.dk + k; at >= 0; at -= s.dk) {
                store(K_right + at, product * load(K + at));
                product *= load(alpha + at);
            }
        }
    }
};

// Four keys decay by α_i, then q_i reads them: products, not yet summed, in [4, W].
INLINE void decay_and_read(float *K, const float *alpha, const float *q, float *products, const Sizes &s) {
    vec total[4] = {};
    for (long k = 0; k < s.dk; k += W) {
        vec alpha_i = load(alpha + k), q_i = load(q + k);
        UNROLL for (int j = 0; j < 4; j++) {
            vec decayed = alpha_i * load(K + j * s.dk + k);
            store(K + j * s.dk + k, decayed);
            total[j] += q_i * decayed;
        }
    }
    UNROLL for (int j = 0; j < 4; j++) store(products + j * W, total[j]);
}

// P_ij = q_i · (α_{j+1} ⊙ … ⊙ α_i ⊙ k_j), zero above the diagonal: [C, C]. By rows: the keys so far decay to token i,
// q_i reads them, k_i joins them. Kd: [C, dk] is scratch.
KERNEL inline void decayed_product(const float *Q, const float *K, const float *alpha, float *Kd, float *P,
                                   const Sizes &s, long tokens) {
    std::memset(Kd, 0, C * s.dk * sizeof(float));
    std::memset(P, 0, C * C * sizeof(float));
    for (long i = 0; i < tokens; i++) {
        const float *q = Q + i * s.dk;
        float products[C * W] = {};
        for (long j = 0; j < i; j += 4) decay_and_read(Kd + j * s.dk, alpha + i * s.dk, q, products + j * W, s);
        vec own = {};
        for (long k = 0; k < s.dk; k += W) {
            vec k_i = load(K + i * s.dk + k);
            store(Kd + i * s.dk + k, k_i);
            own += load(q + k) * k_i;
        }
        store(products + i * W, own);
        for (long j = 0; j <= i; j += W) store(P + i * C + j, sums(products + j * W));
    }
}

// S' = diag(γ_C) S + K_rightᵀ V for one panel, V: [C, dv] from its column on. S and S' may be the same.
KERNEL inline void update_rows(const float *S, float *S_next, const KeyDecay &decay, const float *V, const Sizes &s,
                               long rows, Ahead &ahead) {
    for (long k = 0; k < s.dk; k += UPDATE_M) {
        ahead.ask();
        UNROLL for (int n = 0; n < TILE_N; n++) {
            Tile<UPDATE_M, 1> t;
            t.load_from(S + k * PANEL + n * W, PANEL);
            t.scale_rows(decay.gamma_C(s) + k);
            t.add_product(decay.K_right + k, 1, s.dk, V + n * W, s.dv, rows);
            t.store_to(S_next + k * PANEL + n * W, PANEL);
        }
    }
}

}  // namespace GDN_ISA
