// The gated delta rule, token by token. Columns of S never mix, so a panel of them stays in L1 while the tokens go by,
// and the order of every sum depends on d_k and the instruction set only: results are bit for bit the same however a
// sequence is cut, batched, packed or shared among threads.
#pragma once
#include <algorithm>

#include "gated_delta_rule.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace GDN_ISA {
namespace recurrent {

constexpr int BLOCK = 32;  // tokens whose keys are read together; also between the states backward keeps
constexpr int CHAINS = 2;  // sums run over even and odd rows apart, or each addition would wait for the last

// a b + c. Said outright, since of two products in a sum a compiler may fuse either, and differently in each loop.
INLINE vec multiply_add(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

INLINE float dot(const float *a, const float *b, long n) {
    vec total = {};
    for (long i = 0; i < n; i += W) total = multiply_add(load(a + i), load(b + i), total);
    return sum(total);
}

// One row of a panel.
struct Row {
    vec c[TILE_N] = {};

    template <class T> static INLINE Row read(const T *from, long columns) {
        float padded[PANEL];
        widen_row(from, padded, std::min<long>(columns, PANEL), PANEL);
        return load_from(padded);
    }
    template <class T> INLINE void write(T *to, long columns) const {
        float padded[PANEL];
        store_to(padded);
        narrow_row(padded, to, std::min<long>(columns, PANEL));
    }
    static INLINE Row load_from(const float *p) {
        Row x;
        UNROLL for (int n = 0; n < TILE_N; n++) x.c[n] = load(p + n * W);
        return x;
    }
    INLINE void store_to(float *p) const {
        UNROLL for (int n = 0; n < TILE_N; n++) store(p + n * W, c[n]);
    }
    INLINE void add_product(vec a, const Row &b) {
        UNROLL for (int n = 0; n < TILE_N; n++) c[n] = multiply_add(a, b.c[n], c[n]);
    }
    INLINE Row scaled(float a) const {
        Row x;
        UNROLL for (int n = 0; n < TILE_N; n++) x.c[n] = a * c[n];
        return x;
    }
    INLINE void add(const Row &b) {
        UNROLL for (int n = 0; n < TILE_N; n++) c[n] += b.c[n];
    }
};

// Where a panel of the state lies: in the state itself, row after row of d_v, or in scratch.
struct View {
    float *data;
    long stride;
};

template <class T> INLINE T *at(const Rows &x, long token, long head) {
    return (T *)x.data + token * x.token + head * x.head;
}

// What a token does to one head: α, β and q·k, k and q being rows of Keys.
struct Token {
    const float *k, *q;
    float alpha, beta, qk;
};

// The keys and queries of one head's tokens as floats, [BLOCK, dk] and zero behind d_k, with their gates.
struct Keys {
    const Rule &r;
    Sizes s;
    float *K, *Q, *QK, *k_factor, *q_factor;

    Keys(const Rule &r, const Sizes &s, Take &take)
        : r(r), s(s), K(take(BLOCK * s.dk)), Q(take(BLOCK * s.dk)), QK(take(BLOCK)), k_factor(take(BLOCK)),
          q_factor(take(BLOCK)) {}

    template <class T> void read(long first, long key_head, long tokens) {
        for (long t = 0; t < tokens; t++) {
            widen_row(at<T>(r.k, first + t, key_head), K + t * s.dk, s.d_k, s.dk);
            widen_row(at<T>(r.q, first + t, key_head), Q + t * s.dk, s.d_k, s.dk);
        }
        if (r.normalise) {
            normalise_rows(K, s, tokens, 1, k_factor);
            normalise_rows(Q, s, tokens, 1 / std::sqrt(float(s.d_k)), q_factor);
        }
        for (long t = 0; t < tokens; t++) QK[t] = dot(Q + t * s.dk, K + t * s.dk, s.dk);
    }
    Token token(long first, long t, long head) const {
        return {K + t * s.dk, Q + t * s.dk, std::exp(*at<float>(r.log_alpha, first + t, head)),
                *at<float>(r.beta, first + t, head), QK[t]};
    }
};

// S' = α S + k uᵀ for one panel, a row at a time.
struct Update {
    View from, to;
    Token token;
    Row u;
    INLINE Row row(long i) const {
        Row S = Row::load_from(from.data + i * from.stride).scaled(token.alpha);
        S.add_product(broadcast(token.k[i]), u);
        S.store_to(to.data + i * to.stride);
        return S;
    }
};

// x = kᵀS and y = qᵀS in one pass over the rows of S, which row(i) reads or makes.
template <class NextRow> INLINE void recall(const Token &token, long d_k, Row &x, Row &y, NextRow row) {
    Row xs[CHAINS], ys[CHAINS];
    auto add = [&](long i, int chain) __attribute__((always_inline)) {
        Row S = row(i);
        xs[chain].add_product(broadcast(token.k[i]), S);
        ys[chain].add_product(broadcast(token.q[i]), S);
    };
    long i = 0;
    for (; i + 1 < d_k; i += 2) add(i, 0), add(i + 1, 1);
    if (i < d_k) add(i, 0);
    xs[0].add(xs[1]), ys[0].add(ys[1]);
    x = xs[0], y = ys[0];
}
INLINE void recall(const Token &token, View S, long d_k, Row &x, Row &y) {
    recall(token, d_k, x, y, [&](long i) { return Row::load_from(S.data + i * S.stride); });
}

// e = v − α x, u = β e, o = α y + (q·k) u.
struct Corrected {
    Row e, u, o;
    INLINE Corrected(const Token &token, const Row &v, const Row &x, const Row &y) : e(v) {
        e.add_product(broadcast(-token.alpha), x);
        u = e.scaled(token.beta);
        o = y.scaled(token.alpha);
        o.add_product(broadcast(token.qk), u);
    }
};

// The tokens of a block, for one panel, which goes `from` one place `through` another `to` its last. v(t) reads a value,
// done(t, …) takes what came of it. The pass that writes S for one token recalls for the next.
template <class V, class Done>
INLINE void run_panel(const Keys &keys, long first, long tokens, long head, View from, View through, View to, V v, Done done) {
    long d_k = keys.s.d_k;
    Row x, y;
    Token now = keys.token(first, 0, head), next;
    recall(now, from, d_k, x, y);
    for (long t = 0; t + 1 < tokens; t++, now = next, from = through) {
        Corrected c(now, v(t), x, y);
        done(t, c);
        Update update{from, through, now, c.u};
        next = keys.token(first, t + 1, head);
        recall(next, d_k, x, y, [&](long i) __attribute__((always_inline)) { return update.row(i); });
    }
    Corrected c(now, v(tokens - 1), x, y);
    done(tokens - 1, c);
    Update update{from, to, now, c.u};
    for (long i = 0; i < d_k; i++) update.row(i);
}

// A panel of a state [d_k, d_v] to scratch, [d_k, PANEL], and back.
inline void read_panel(const float *state, const Sizes &s, long columns, float *S) {
    for (long k = 0; k < s.d_k; k++) Row::read(state + k * s.d_v, columns).store_to(S + k * PANEL);
}
inline void write_panel(const float *S, const Sizes &s, long columns, float *state) {
    for (long k = 0; k < s.d_k; k++) Row::load_from(S + k * PANEL).write(state + k * s.d_v, columns);
}

}  // namespace recurrent
}  // namespace GDN_ISA
