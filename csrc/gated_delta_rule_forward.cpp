// The gated delta rule, forward, chunk by chunk: S is folded in before the solve, so W is never formed. Linear attention
// with one decay a token is the same without the correction: U = V. With PAIRS the three large products multiply
// bfloat16 numbers, two at a time; everything else, the solve above all, stays in float.
#include "gated_delta_rule.h"

namespace GDN_ISA {
namespace {

constexpr long ASK = 16;  // keys of a product between two looks ahead; divides dk

// A task: some neighbouring key heads, each with its group of value heads.
template <bool DELTA, bool PAIRS> struct Forward {
    const Rule &r;
    Sizes s;
    long heads, group;
    float *K, *Q;  // of the head at work: [C, dk]
    float *Kt, *KK, *QK, *A, *P, *U, *U_right, *factor;
    Decay decay;
    Ahead ahead;
    float *S;  // [heads · group, panels, dk, PANEL]
    // Words of two bfloat16 numbers, paired along the axis that is summed: [C, dk/2], [dk/2, C], [C/2, dk], …
    uint32_t *K_words, *Q_words, *Kt_words, *K_pairs, *S_words, *U_words;

    Forward(const Rule &r, long heads, long group, Take &take)
        : r(r), s(r.d_k, r.d_v), heads(heads), group(group), K(take(C * s.dk)), Q(take(C * s.dk)),
          Kt(take(s.dk * C)), KK(take(C * C)), QK(take(C * C)), A(take(C * C)), P(take(C * C)), U(take(C * PANEL)),
          U_right(take(C * PANEL)), factor(take(C)), decay(take), S(take(heads * group * s.dk * s.dv)),
          K_words(words(take, C * s.dk / 2)), Q_words(words(take, C * s.dk / 2)), Kt_words(words(take, C * s.dk / 2)),
          K_pairs(words(take, C * s.dk / 2)),
          S_words(words(take, s.dk / 2 * PANEL)), U_words(words(take, C / 2 * PANEL)) {}
    static uint32_t *words(Take &take, long n) { return (uint32_t *)take(n); }

    template <class T> void look_ahead(long first, long end, long value_head) {
        long tokens = first >= end ? 0 : end - first < C ? end - first : C, key_head = value_head * r.H / r.H_v;
        ahead = Ahead();
        ahead.add<T>(r.k, first, key_head, heads, r.d_k);
        ahead.add<T>(r.q, first, key_head, heads, r.d_k);
        ahead.add<T>(r.v, first, value_head, heads * group, r.d_v);
        ahead.spread(tokens, heads * group * s.panels * ((1 + DELTA) * C / TILE_M * s.dk / ASK + s.dk / UPDATE_M * TILE_N));
    }

    // K, Q and their products, for one key head.
    template <class T> void read_keys(long first, long head, long tokens) {
        read_rows<T>(r.k, first, head, tokens, s.d_k, s.dk, K);
        read_rows<T>(r.q, first, head, tokens, s.d_k, s.dk, Q);
        if (r.normalise) {
            normalise_rows(K, s, tokens, 1, factor);
            normalise_rows(Q, s, tokens, 1 / std::sqrt(float(s.d_k)), factor);
        }
        long rows = round_up(tokens, TILE_M);
        if (PAIRS) {
            for (long i = 0; i < C; i++) pair_columns(K + i * s.dk, K_words + i * s.dk / 2, s.dk);
            for (long i = 0; i < C; i++) pair_columns(Q + i * s.dk, Q_words + i * s.dk / 2, s.dk);
            for (long i = 0; i < C; i += 2) pair_rows(K + i * s.dk, K + (i + 1) * s.dk, K_pairs + i / 2 * s.dk, s.dk);
            for (long i = 0; i < s.dk / 2; i++)
                for (long j = 0; j < C; j++) Kt_words[i * C + j] = K_words[j * s.dk / 2 + i];
            if (DELTA) lower_product_of_words(K_words, KK, rows);
            lower_product_of_words(Q_words, QK, rows);
            return;
        }
        transpose(K, s.dk, Kt, C, C, s.dk);
        if (DELTA) lower_product(Kt, 1, C, Kt, KK, s, rows);
        lower_product(Q, s.dk, 1, Kt, QK, s, rows);
    }

    KERNEL void lower_product_of_words(const uint32_t *X, float *out, long rows) const {
        for (long i = 0; i < rows; i += UPDATE_M)
            for (long j = 0; j < i + UPDATE_M; j += W) {
                Tile<UPDATE_M, 1> t;
                t.zero();
                add_words(t, X + i * s.dk / 2, s.dk / 2, 1, Kt_words + j, C, s.dk / 2);
                t.store_to(out + i * C + j, C);
            }
    }

    // t += rows i … of K or Q, times a panel of S.
    INLINE void add_keys(Tile<TILE_M, TILE_N> &t, const float *X, const uint32_t *X_words, const float *S, long i) {
        for (long k = 0; k < s.dk; k += ASK) {
            ahead.ask();
            if (PAIRS) add_words(t, X_words + (i * s.dk + k) / 2, s.dk / 2, 1, S_words + k / 2 * PANEL, PANEL, ASK / 2);
            else t.add_product(X + i * s.dk + k, s.dk, 1, S + k * PANEL, PANEL, ASK);
        }
    }

    KERNEL void pair_state(const float *S) {
        for (long k = 0; k < s.dk; k += 2) pair_rows(S + k * PANEL, S + (k + 1) * PANEL, S_words + k / 2 * PANEL, PANEL);
    }

    KERNEL void update_by_pairs(float *S, long rows) {
        for (long i = 0; i < rows; i += 2)
            pair_rows(U_right + i * PANEL, U_right + (i + 1) * PANEL, U_words + i / 2 * PANEL, PANEL);
        for (long k = 0; k < s.dk; k += UPDATE_M) {
            UNROLL for (int n = 0; n < TILE_N; n++) {
                ahead.ask();
                Tile<UPDATE_M, 1> t;
                t.load_from(S + k * PANEL + n * W, PANEL);
                t.scale(decay.gamma[C - 1]);
                add_words(t, K_pairs + k, 1, s.dk, U_words + n * W, PANEL, rows / 2);
                t.store_to(S + k * PANEL + n * W, PANEL);
            }
        }
    }

    // Γ ⊙ K Kᵀ and Γ ⊙ Q Kᵀ, for the decays at hand. Only what is on or below the diagonal is read later.
    void mask(long rows) {
        for (long i = 0; i < rows * C; i += W) {
            vec Gamma = load(decay.Gamma + i);
            if (DELTA) store(A + i, Gamma * load(KK + i));
            store(P + i, Gamma * load(QK + i));
        }
    }

    // Rows i … of U: what is to be corrected, minus what earlier tokens of the chunk have done already.
    template <class T> KERNEL void solve(const T *v, float *kept, const float *S, long i, long rows, long columns) {
        Tile<TILE_M, TILE_N> t, target;
        if (!DELTA) {
            read_tile(t, v + i * r.v.token, r.v.token, rows - i, columns);
            t.store_to(U + i * PANEL, PANEL);
            t.scale_rows(decay.to_end() + i);
            t.store_to(U_right + i * PANEL, PANEL);
            return;
        }
        t.zero();
        add_keys(t, K, K_words, S, i);
        t.scale_rows(decay.gamma + i);
        t.add_product(A + i * C, C, 1, U, PANEL, i);
        read_tile(target, v + i * r.v.token, r.v.token, rows - i, columns);
        UNROLL for (int m = 0; m < TILE_M; m++) {
            UNROLL for (int n = 0; n < TILE_N; n++) t.c[m][n] = target.c[m][n] - t.c[m][n];
            UNROLL for (int j = 0; j < m; j++) UNROLL for (int n = 0; n < TILE_N; n++)
                t.c[m][n] -= (A[(i + m) * C + i + j] * decay.beta[i + j]) * t.c[j][n];
        }
        if (kept) write_tile(t, kept + i * r.H_v * s.d_v, r.H_v * s.d_v, rows - i, columns);
        t.scale_rows(decay.beta + i);
        t.store_to(U + i * PANEL, PANEL);
        t.scale_rows(decay.to_end() + i);
        t.store_to(U_right + i * PANEL, PANEL);
    }

    template <class T> KERNEL void output(T *o, const float *S, long i, long rows, long columns) {
        Tile<TILE_M, TILE_N> t;
        t.zero();
        add_keys(t, Q, Q_words, S, i);
        t.scale_rows(decay.gamma + i);
        t.add_product(P + i * C, C, 1, U, PANEL, i + TILE_M);
        write_tile(t, o + i * r.o.token, r.o.token, rows - i, columns);
    }

    template <class T> void value_head(long first, long head, long tokens, float *S) {
        decay.fill(r, first, head, tokens);
        long rows = round_up(tokens, TILE_M);
        mask(rows);
        for (long p = 0; p < s.panels; p++) {
            float *S_p = S + p * s.dk * PANEL;
            long column = p * PANEL, columns = s.d_v - column;
            const T *v = (const T *)r.v.data + first * r.v.token + head * r.v.head + column;
            T *o = (T *)r.o.data + first * r.o.token + head * r.o.head + column;
            float *kept = r.corrections ? r.corrections + (first * r.H_v + head) * s.d_v + column : nullptr;
            if (PAIRS) pair_state(S_p);
            for (long i = 0; i < rows; i += TILE_M) solve(v, kept, S_p, i, tokens, columns);
            for (long i = 0; i < rows; i += TILE_M) output(o, S_p, i, tokens, columns);
            if (PAIRS) update_by_pairs(S_p, rows);
            else update_panel(S_p, S_p, K, U_right, decay.gamma[C - 1], s, rows, ahead);
        }
    }
};

}  // namespace

void gated_delta_rule_forward(const Rule &r) {
    r.bfloat16 ? forward_by_chunks<Forward<true, WORDS>, uint16_t>(r) : forward_by_chunks<Forward<true, false>, float>(r);
}

void linear_attention_forward(const Rule &r) {
    r.bfloat16 ? forward_by_chunks<Forward<false, WORDS>, uint16_t>(r) : forward_by_chunks<Forward<false, false>, float>(r);
}

}  // namespace GDN_ISA
