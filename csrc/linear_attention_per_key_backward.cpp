// Linear attention with a decay per token and key, backward. A segment of chunks at a time, from the last: its states are
// made again from the checkpoint at its start, then its chunks go in reverse. In a chunk with dS' behind it,
//   dV = Pᵀ dO + K_right dS'   dP = lower(dO Vᵀ)   dS = diag(γ_C) dS' + (γ ⊙ Q)ᵀ dO
// and the rest is the rows of P in reverse: `reverse_rows`.
#include "linear_attention_per_key.h"

namespace GDN_ISA {
namespace {

// A task: one key head with its group of value heads. Letters with a t at the end are transposed, [d, C].
struct Backward {
    const Rule &r;
    Sizes s;
    Ahead ahead, none;
    float *K, *Q, *dK, *dQ;     // [interval, dk], the whole segment's
    float *V, *dO, *dV;         // [C, dv]
    float *Vt, *dOt, *Xt;       // [dv, C], and [dk, C]
    float *Z, *D, *dlog_alpha;  // [C, dk]: Z = dO Sᵀ, D the gradient of the keys as they have decayed so far
    float *P, *dP;              // [C, C]
    float *Kd, *history;        // [C, dk], and [C, C, W]: W channels of every key at every token of the chunk
    float *products, *end;      // [dk, W], and their sums: S ⊙ dS' over the values
    KeyDecay decay;
    float *S, *dS;  // [chunks of a segment, panels, dk, PANEL], [value heads of the task, panels, dk, PANEL]

    Backward(const Rule &r, long value_heads, Take &take)
        : r(r), s(r.d_k, r.d_v), K(take(r.interval * s.dk)), Q(take(r.interval * s.dk)), dK(take(r.interval * s.dk)),
          dQ(take(r.interval * s.dk)), V(take(C * s.dv)), dO(take(C * s.dv)), dV(take(C * s.dv)), Vt(take(s.dv * C)),
          dOt(take(s.dv * C)), Xt(take(s.dk * C)), Z(take(C * s.dk)), D(take(C * s.dk)), dlog_alpha(take(C * s.dk)),
          P(take(C * C)), dP(take(C * C)), Kd(take(C * s.dk)), history(take(C * C * W)), products(take(s.dk * W)),
          end(take(s.dk)), decay(take, s), S(take(r.interval / C * s.dk * s.dv)),
          dS(take(value_heads * s.dk * s.dv)) {}

    long state_size() const { return s.dk * s.dv; }

    // The states before each chunk of the segment.
    template <class T> void states(long first, long tokens, long head, const float *checkpoint) {
        read_state(checkpoint, s, S);
        for (long at = 0; at + C < tokens; at += C) {
            decay.fill(r, s, first + at, head, C, K + at * s.dk, Q + at * s.dk);
            read_rows<T>(r.v, first + at, head, C, s.d_v, s.dv, V);
            float *S_p = S + at / C * state_size();
            for (long p = 0; p < s.panels; p++, S_p += s.dk * PANEL)
                update_rows(S_p, S_p + state_size(), decay, V + p * PANEL, s, C, none);
        }
    }

    // dV = Pᵀ dO + K_right dS' for a panel of columns.
    KERNEL void value_gradients(const float *dS, long column) {
        for (long i = 0; i < C; i += TILE_M) {
            Tile<TILE_M, TILE_N> t;
            ahead.ask();
            t.zero();
            t.add_product(decay.K_right + i * s.dk, s.dk, 1, dS, PANEL, s.d_k);
            t.add_product(P + i * C + i, 1, C, dO + i * s.dv + column, s.dv, C - i);
            t.store_to(dV + i * s.dv + column, s.dv);
        }
    }

    // dP = dO Vᵀ; what is above the diagonal is not read.
    KERNEL void score_gradients() const {
        for (long i = 0; i < C; i += UPDATE_M)
            for (long j = 0; j < i + UPDATE_M; j += W) {
                Tile<UPDATE_M, 1> t;
                t.zero();
                t.add_product(dO + i * s.dv, s.dv, 1, Vt + j, C, s.d_v);
                t.store_to(dP + i * C + j, C);
            }
    }

    // out = X Sᵀ: [C, dk], S in panels and Xt: [dv, C].
    KERNEL void state_product(const float *S, const float *Xt, float *out) {
        for (long k = 0; k < s.dk; k += UPDATE_M)
            for (long c = 0; c < C; c += W) {
                Tile<UPDATE_M, 1> t;
                ahead.ask();
                t.zero();
                for (long p = 0; p < s.panels; p++) {
                    long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
                    t.add_product(S + (p * s.dk + k) * PANEL, PANEL, 1, Xt + p * PANEL * C + c, C, columns);
                }
                t.store_to(this->Xt + k * C + c, C);
            }
        transpose(this->Xt, C, out, s.dk, s.dk, C);
    }

    // dS = diag(γ_C) dS + (γ ⊙ Q)ᵀ dO, and `end` from dS before that.
    KERNEL void update(const float *S, float *dS) {
        std::memset(products, 0, s.dk * W * sizeof(float));
        for (long p = 0; p < s.panels; p++)
            for (long k = 0; k < s.dk; k += UPDATE_M)
                for (int n = 0; n < TILE_N; n++) {
                    long at = (p * s.dk + k) * PANEL + n * W;
                    Tile<UPDATE_M, 1> t;
                    ahead.ask();
                    t.load_from(dS + at, PANEL);
                    UNROLL for (int m = 0; m < UPDATE_M; m++) {
                        float *total = products + (k + m) * W;
                        store(total, load(total) + t.c[m][0] * load(S + at + m * PANEL));
                    }
                    t.scale_rows(decay.gamma_C(s) + k);
                    t.add_product(decay.Q_left + k, 1, s.dk, dO + p * PANEL + n * W, s.dv, C);
                    t.store_to(dS + at, PANEL);
                }
        for (long k = 0; k < s.dk; k += W) store(end + k, sums(products + k * W));
    }

    // W channels from k on: how the keys decayed, then the rows of P from the last. Before row i D holds the gradients
    // of the keys as they were at token i, but for what q_i reads.
    KERNEL void reverse_rows(const float *K, const float *Q, float *dK, float *dQ, long k, long tokens) {
        for (long i = 0; i < tokens; i++) {
            float *now = history + i * C * W;
            vec alpha = load(decay.alpha + i * s.dk + k);
            for (long j = 0; j < i; j++) store(now + j * W, alpha * load(now + (j - C) * W));
            store(now + i * W, load(K + i * s.dk + k));
        }
        vec tail = load(decay.gamma_C(s) + k) * load(end + k);  // of d log α: what came from S and went on past token i
        for (long i = tokens - 1; i >= 0; i--) {
            const float *now = history + i * C * W, *dP_i = dP + i * C;
            long at = i * s.dk + k;
            vec alpha = load(decay.alpha + at), q = load(Q + at), from_S = load(decay.gamma + at) * load(Z + at);
            vec dq = from_S + dP_i[i] * load(K + at), total = tail += from_S * q;
            for (long j = 0; j < i; j++) {
                vec key = load(now + j * W), d = load(D + j * s.dk + k) + dP_i[j] * q;
                dq += dP_i[j] * key;
                total += d * key;
                store(D + j * s.dk + k, alpha * d);
            }
            store(dQ + at, load(dQ + at) + dq);
            store(dK + at, load(dK + at) + load(D + at) + dP_i[i] * q);
            store(dlog_alpha + at, total);
        }
    }

    template <class T> void value_head(long first, long head, long tokens, long in_segment, const float *S, float *dS) {
        const float *K = this->K + in_segment * s.dk, *Q = this->Q + in_segment * s.dk;
        decay.fill(r, s, first, head, tokens, K, Q);
        decayed_product(Q, K, decay.alpha, Kd, P, s, tokens);
        read_rows<T>(r.v, first, head, tokens, s.d_v, s.dv, V);
        read_rows<T>(r.do_, first, head, tokens, s.d_v, s.dv, dO);
        transpose(V, s.dv, Vt, C, C, s.dv);
        transpose(dO, s.dv, dOt, C, C, s.dv);

        for (long p = 0; p < s.panels; p++) value_gradients(dS + p * s.dk * PANEL, p * PANEL);
        score_gradients();
        state_product(S, dOt, Z);
        state_product(dS, Vt, D);
        update(S, dS);
        for (long k = 0; k < s.dk; k += W)
            reverse_rows(K, Q, dK + in_segment * s.dk, dQ + in_segment * s.dk, k, tokens);
        for (long i = 0; i < tokens; i++) {
            narrow_row(dV + i * s.dv, (T *)r.dv.data + (first + i) * r.dv.token + head * r.dv.head, s.d_v);
            narrow_row(dlog_alpha + i * s.dk,
                       (float *)r.dlog_alpha.data + (first + i) * r.dlog_alpha.token + head * r.dlog_alpha.head, s.d_k);
        }
    }

    // The rows of the segment before this one, which comes next.
    template <class T> void look_ahead(long key_head, long first, long tokens) {
        long group = r.H_v / r.H, value_head = key_head * group;
        ahead = Ahead();
        if (!tokens || !group) return;
        for (const Rows *x : {&r.k, &r.q}) ahead.add<T>(*x, first, key_head, 1, s.d_k);
        for (const Rows *x : {&r.v, &r.do_, &r.dv}) ahead.add<T>(*x, first, value_head, group, s.d_v);
        for (const Rows *x : {&r.log_alpha, &r.dlog_alpha}) ahead.add<float>(*x, first, value_head, group, s.d_k);
        long calls_of_chunk = s.panels * C / TILE_M + 2 * s.dk / UPDATE_M * (C / W) + s.panels * TILE_N * s.dk / UPDATE_M;
        ahead.spread(tokens, 1 + group * (r.interval / C) * calls_of_chunk);
    }

    template <class T> void segment(long n, long key_head, long first, long tokens, float *dS) {
        long group = r.H_v / r.H, rows = round_up(tokens, C);
        look_ahead<T>(key_head, first - r.interval, first > r.ends[n] ? r.interval : 0);
        read_rows<T>(r.k, first, key_head, tokens, s.d_k, s.dk, K, rows);
        read_rows<T>(r.q, first, key_head, tokens, s.d_k, s.dk, Q, rows);
        std::memset(dK, 0, rows * s.dk * sizeof(float));
        std::memset(dQ, 0, rows * s.dk * sizeof(float));
        for (long g = 0; g < group; g++) {
            long head = key_head * group + g;
            states<T>(first, tokens, head, checkpoint(r, n, first, head));
            for (long at = rows - C; at >= 0; at -= C)
                value_head<T>(first + at, head, tokens - at < C ? tokens - at : C, at, S + at / C * state_size(),
                              dS + g * state_size());
        }
        for (long i = 0; i < tokens; i++) {
            narrow_row(dK + i * s.dk, (T *)r.dk.data + (first + i) * r.dk.token + key_head * r.dk.head, s.d_k);
            narrow_row(dQ + i * s.dk, (T *)r.dq.data + (first + i) * r.dq.token + key_head * r.dq.head, s.d_k);
        }
    }
};

}  // namespace

void linear_attention_per_key_backward(const Rule &r) {
    r.bfloat16 ? backward_by_segments<Backward, uint16_t>(r, 1) : backward_by_segments<Backward, float>(r, 1);
}

}  // namespace GDN_ISA
