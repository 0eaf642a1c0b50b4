// Linear attention with a decay per token and key, forward, chunk by chunk: O = (γ ⊙ Q) S + P V, then S' = diag(γ_C) S +
// K_rightᵀ V.
#include "linear_attention_per_key.h"

namespace GDN_ISA {
namespace {

// A task: some neighbouring key heads, each with its group of value heads.
struct Forward {
    const Rule &r;
    Sizes s;
    long heads, group;
    float *K, *Q, *V;  // of the head at work: [C, dk], [C, dv]
    KeyDecay decay;
    float *Kd, *P;  // [C, dk], [C, C]
    Ahead ahead;
    float *S;  // [heads · group, panels, dk, PANEL]

    Forward(const Rule &r, long heads, long group, Take &take)
        : r(r), s(r.d_k, r.d_v), heads(heads), group(group), K(take(C * s.dk)), Q(take(C * s.dk)),
          V(take(C * s.dv)), decay(take, s), Kd(take(C * s.dk)), P(take(C * C)),
          S(take(heads * group * s.dk * s.dv)) {}

    template <class T> void read_keys(long first, long head, long tokens) {
        read_rows<T>(r.k, first, head, tokens, s.d_k, s.dk, K);
        read_rows<T>(r.q, first, head, tokens, s.d_k, s.dk, Q);
    }

    template <class T> void look_ahead(long first, long end, long value_head) {
        long tokens = first >= end ? 0 : end - first < C ? end - first : C, key_head = value_head * r.H / r.H_v;
        ahead = Ahead();
        ahead.add<T>(r.k, first, key_head, heads, r.d_k);
        ahead.add<T>(r.q, first, key_head, heads, r.d_k);
        ahead.add<T>(r.v, first, value_head, heads * group, r.d_v);
        ahead.add<float>(r.log_alpha, first, value_head, heads * group, r.d_k);
        ahead.add<T>(r.o, first, value_head, heads * group, r.d_v);
        ahead.spread(tokens, 1 + heads * group * s.panels * (C / TILE_M + s.dk / UPDATE_M));
    }

    template <class T> KERNEL void output(T *o, const float *S, const float *V, long i, long tokens, long columns) {
        Tile<TILE_M, TILE_N> t;
        t.zero();
        t.add_product(decay.Q_left + i * s.dk, s.dk, 1, S, PANEL, s.d_k);
        t.add_product(P + i * C, C, 1, V, s.dv, i + TILE_M);
        write_tile(t, o + i * r.o.token, r.o.token, tokens - i, columns);
    }

    template <class T> void value_head(long first, long head, long tokens, float *S) {
        read_rows<T>(r.v, first, head, tokens, s.d_v, s.dv, V);
        decay.fill(r, s, first, head, tokens, K, Q);
        decayed_product(Q, K, decay.alpha, Kd, P, s, tokens);
        long rows = round_up(tokens, TILE_M);
        for (long p = 0; p < s.panels; p++) {
            float *S_p = S + p * s.dk * PANEL;
            long column = p * PANEL;
            T *o = (T *)r.o.data + first * r.o.token + head * r.o.head + column;
            for (long i = 0; i < rows; i += TILE_M) ahead.ask(), output(o, S_p, V + column, i, tokens, s.d_v - column);
            update_rows(S_p, S_p, decay, V + column, s, rows, ahead);
        }
    }
};

}  // namespace

void linear_attention_per_key_forward(const Rule &r) {
    r.bfloat16 ? forward_by_chunks<Forward, uint16_t>(r) : forward_by_chunks<Forward, float>(r);
}

}  // namespace GDN_ISA
