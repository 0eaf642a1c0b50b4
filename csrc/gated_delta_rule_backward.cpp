// The gated delta rule, backward: docs/derivation.md, "Backward". A segment of chunks at a time, from the last: its states
// are made again from the checkpoint at its start and the corrections kept by forward, then its chunks go in reverse.
// Linear attention with one decay a token is the same without the solve: dV = dU.
#include "gated_delta_rule.h"

namespace GDN_ISA {
namespace {

// A task: some neighbouring key heads, each with its group of value heads. Letters with a t at the end are transposed, [d, C].
template <bool DELTA> struct Backward {
    const Rule &r;
    Sizes s;
    Ahead none;  // rows are read a segment at a time: asking for the next ones early made it slower
    // Of the whole segment: [interval, dk or dv], and [interval] the factors that made K and Q unit vectors.
    float *K, *Q, *dK, *dQ;  // dK and dQ: sums over the value heads of a key head, of normalised keys until undo_normalise
    float *U;                // the corrections before β, u / β; a chunk's rows are U from `value_head` on
    float *k_factor, *q_factor;
    // Of the chunk and value head at hand.
    float *dO, *dV, *dO_left, *dV_left;  // [C, dv]; …_left: times γ
    float *Kt, *Qt, *Ut, *dOt, *dVt;     // [dk, C] and [dv, C]
    float *dXt;                          // [dk, C]: dQᵀ, then a part of dKᵀ, then dKᵀ
    float *KK, *QK;                      // [C, C]: K Kᵀ and Q Kᵀ on and below the diagonal, zero above
    float *A, *P;                        // [C, C]: Γ ⊙ K Kᵀ, without β, and Γ ⊙ Q Kᵀ
    float *dP, *dPt;                     // [C, C]: Γ ⊙ dP and its transpose
    float *B;                            // [C, C]: −B with a diagonal, then −B, then B + Bᵀ
    float *E;                            // [C, C]: products not yet masked, then E, the gradient of log Γ
    float *X;                            // [C, PANEL]: diag(γ_C / γ) U for one panel
    float *dbeta;                        // [C, W]: parts of dβ, still to be summed
    float *q_dot, *k_dot, *end_dot;      // [C]: the parts of e from Q S and from K S, and of E's last row
    float *dlog_alpha;                   // [C]
    Decay decay;
    float *S;   // [chunks of a segment, panels, dk, PANEL]: the state before each chunk
    float *dS;  // [value heads of the task, panels, dk, PANEL]: the gradient of the state behind a chunk, then before it

    Backward(const Rule &r, long value_heads, Take &take)
        : r(r), s(r.d_k, r.d_v), K(take(r.interval * s.dk)), Q(take(r.interval * s.dk)), dK(take(r.interval * s.dk)),
          dQ(take(r.interval * s.dk)), U(take(r.interval * s.dv)), k_factor(take(r.interval)), q_factor(take(r.interval)),
          dO(take(C * s.dv)), dV(take(C * s.dv)), dO_left(take(C * s.dv)), dV_left(take(C * s.dv)), Kt(take(s.dk * C)),
          Qt(take(s.dk * C)), Ut(take(s.dv * C)), dOt(take(s.dv * C)), dVt(take(s.dv * C)), dXt(take(s.dk * C)),
          KK(take(C * C)), QK(take(C * C)), A(take(C * C)), P(take(C * C)), dP(take(C * C)), dPt(take(C * C)),
          B(take(C * C)), E(take(C * C)), X(take(C * PANEL)), dbeta(take(C * W)), q_dot(take(C)), k_dot(take(C)),
          end_dot(take(C)), dlog_alpha(take(C)), decay(take), S(take(r.interval / C * s.dk * s.dv)),
          dS(take(value_heads * s.dk * s.dv)) {}

    long state_size() const { return s.dk * s.dv; }

    // U, before β: the corrections that forward kept, or in linear attention the values.
    template <class T> void read_corrections(long first, long head, long tokens) {
        Rows corrections{r.corrections, r.H_v * s.d_v, s.d_v};
        if (DELTA) read_rows<float>(corrections, first, head, tokens, s.d_v, s.dv, U, round_up(tokens, C));
        else read_rows<T>(r.v, first, head, tokens, s.d_v, s.dv, U, round_up(tokens, C));
    }

    // The states before each chunk of the segment.
    void states(long first, long tokens, long head, const float *checkpoint) {
        read_state(checkpoint, s, S);
        for (long j = 0; (j + 1) * C < tokens; j++) {
            decay.fill(r, first + j * C, head, C);
            const float *U = this->U + j * C * s.dv, *from = S + j * state_size();
            float *to = S + (j + 1) * state_size();
            for (long p = 0; p < s.panels; p++) {
                for (long i = 0; i < C; i++)
                    for (long n = 0; n < PANEL; n += W)
                        store(X + i * PANEL + n, load(U + i * s.dv + p * PANEL + n) * (decay.beta[i] * decay.to_end()[i]));
                update_panel(from + p * s.dk * PANEL, to + p * s.dk * PANEL, K + j * C * s.dk, X, decay.gamma[C - 1], s,
                             C, none);
            }
        }
    }

    void mask(const float *from, float *to) const {
        for (long i = 0; i < C * C; i += W) store(to + i, load(decay.Gamma + i) * load(from + i));
    }

    // (I + A)ᵀ Y = dU for a panel of columns, from the last rows up. dV = β Y; dβ is Y · u before β, row by row.
    KERNEL void solve(const float *K, const float *U, const float *dS, long column) {
        for (long i = C - TILE_M; i >= 0; i -= TILE_M) {
            Tile<TILE_M, TILE_N> t;
            t.zero();
            t.add_product(K + i * s.dk, s.dk, 1, dS, PANEL, s.d_k);
            t.scale_rows(decay.to_end() + i);
            t.add_product(P + i * C + i, 1, C, dO + i * s.dv + column, s.dv, C - i);
            if (!DELTA) {
                t.store_to(dV + i * s.dv + column, s.dv);
                continue;
            }
            t.subtract_product(A + (i + TILE_M) * C + i, 1, C, dV + (i + TILE_M) * s.dv + column, s.dv, C - i - TILE_M);
            UNROLL for (int m = TILE_M - 1; m >= 0; m--) {
                UNROLL for (int j = TILE_M - 1; j > m; j--) UNROLL for (int n = 0; n < TILE_N; n++)
                    t.c[m][n] -= (A[(i + j) * C + i + m] * decay.beta[i + j]) * t.c[j][n];
            }
            UNROLL for (int m = 0; m < TILE_M; m++) {
                vec dot = load(dbeta + (i + m) * W);
                UNROLL for (int n = 0; n < TILE_N; n++) dot += t.c[m][n] * load(U + (i + m) * s.dv + column + n * W);
                store(dbeta + (i + m) * W, dot);
            }
            t.scale_rows(decay.beta + i);
            t.store_to(dV + i * s.dv + column, s.dv);
        }
    }

    // X Uᵀ for X: [C, dv].
    KERNEL void value_product(const float *X, float *out) const {
        for (long i = 0; i < C; i += UPDATE_M)
            for (long j = 0; j < C; j += W) {
                Tile<UPDATE_M, 1> t;
                t.zero();
                t.add_product(X + i * s.dv, s.dv, 1, Ut + j, C, s.d_v);
                t.store_to(out + i * C + j, C);
            }
    }

    // t = rows k … of S Xᵀ, S in panels and Xt: [dv, C].
    INLINE void state_product(Tile<UPDATE_M, 1> &t, const float *S, const float *Xt, long k) const {
        for (long p = 0; p < s.panels; p++) {
            long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
            t.add_product(S + (p * s.dk + k) * PANEL, PANEL, 1, Xt + p * PANEL * C, C, columns);
        }
    }

    // Each row of t times x, and what that adds to the rows' products with Xt.
    static INLINE void scale_and_dot(Tile<UPDATE_M, 1> &t, vec x, const float *Xt, float *dot) {
        vec total = load(dot);
        UNROLL for (int m = 0; m < UPDATE_M; m++) total += (t.c[m][0] *= x) * load(Xt + m * C);
        store(dot, total);
    }

    // dQ and dK of the chunk, transposed, then added to the segment's. dS is still that of the state behind the chunk.
    KERNEL void key_gradients(const float *K, const float *Q, const float *S, const float *dS, float *dK, float *dQ) {
        for (long k = 0; k < s.dk; k += UPDATE_M)
            for (long c = 0; c < C; c += W) {
                Tile<UPDATE_M, 1> t;
                t.zero();
                state_product(t, S, dOt + c, k);
                scale_and_dot(t, load(decay.gamma + c), Qt + k * C + c, q_dot + c);
                t.add_product(K + k, 1, s.dk, dPt + c, C, C);
                t.store_to(dXt + k * C + c, C);  // dQᵀ
            }
        add_transposed(dXt, dQ);
        for (long k = 0; k < s.dk; k += UPDATE_M)
            for (long c = 0; c < C; c += W) {
                Tile<UPDATE_M, 1> t, end;
                t.zero();
                if (DELTA) {
                    state_product(t, S, dVt + c, k);
                    scale_and_dot(t, -load(decay.gamma + c), Kt + k * C + c, k_dot + c);
                }
                t.store_to(dXt + k * C + c, C);  // of dKᵀ what S gives; put aside: two tiles fill the registers
                end.zero();
                state_product(end, dS, Ut + c, k);
                scale_and_dot(end, load(decay.to_end() + c), Kt + k * C + c, end_dot + c);
                UNROLL for (int m = 0; m < UPDATE_M; m++) end.c[m][0] += load(dXt + (k + m) * C + c);
                end.add_product(Q + k, 1, s.dk, dP + c, C, C);
                if (DELTA) end.add_product(K + k, 1, s.dk, B + c, C, C);
                end.store_to(dXt + k * C + c, C);  // dKᵀ
            }
        add_transposed(dXt, dK);
    }

    void add_transposed(const float *Xt, float *to) const {
        float block[W * W];
        for (long k = 0; k < s.dk; k += W)
            for (long c = 0; c < C; c += W) {
                transpose_block(Xt + k * C + c, C, block, W);
                for (int i = 0; i < W; i++) {
                    float *row = to + (c + i) * s.dk + k;
                    store(row, load(row) + load(block + i * W));
                }
            }
    }

    // From the gradient of the state behind the chunk to that before it, in place: dS = γ_C dS' + Qᵀ dO← − Kᵀ dV←.
    // Returns ⟨dS', S⟩.
    KERNEL float update(const float *K, const float *Q, const float *S, float *dS) {
        vec dot[4] = {};  // more than one: sums wait for the one before
        for (long p = 0; p < s.panels; p++)
            for (long k = 0; k < s.dk; k += UPDATE_M)
                for (int n = 0; n < TILE_N; n++) {
                    long at = (p * s.dk + k) * PANEL + n * W, column = p * PANEL + n * W;
                    Tile<UPDATE_M, 1> t;
                    t.load_from(dS + at, PANEL);
                    UNROLL for (int m = 0; m < UPDATE_M; m++) dot[m % 4] += t.c[m][0] * load(S + at + m * PANEL);
                    t.scale(decay.gamma[C - 1]);
                    t.add_product(Q + k, 1, s.dk, dO_left + column, s.dv, C);
                    if (DELTA) t.subtract_product(K + k, 1, s.dk, dV_left + column, s.dv, C);
                    t.store_to(dS + at, PANEL);
                }
        return sum((dot[0] + dot[1]) + (dot[2] + dot[3]));
    }

    // d log α_m = Σ_{i ≥ m > j} E_ij + Σ_{i ≥ m} e_i: sums over rectangles, in which nothing cancels.
    // end: ⟨dS', S⟩.
    void decay_gradients(float end) {
        for (long j = 0; j + 1 < C; j++) E[(C - 1) * C + j] += end_dot[j];
        float column[C] = {}, tail = decay.gamma[C - 1] * end;
        for (long m = C - 1; m >= 0; m--) {
            float total = 0;
            for (long j = 0; j < m; j++) total += column[j] += E[m * C + j];
            tail += q_dot[m] + k_dot[m];
            dlog_alpha[m] = total + tail;
        }
    }

    template <class T> void value_head(long first, long head, long tokens, long in_segment, const float *S, float *dS) {
        float *K = this->K + in_segment * s.dk, *Q = this->Q + in_segment * s.dk, *U = this->U + in_segment * s.dv;
        decay.fill(r, first, head, tokens);
        read_rows<T>(r.do_, first, head, tokens, s.d_v, s.dv, dO);
        std::memset(dbeta, 0, C * W * sizeof(float));
        for (float *dot : {q_dot, k_dot, end_dot}) std::memset(dot, 0, C * sizeof(float));

        if (DELTA) mask(KK, A);  // its β is multiplied in by solve
        mask(QK, P);
        for (long p = 0; p < s.panels; p++) solve(K, U, dS + p * s.dk * PANEL, p * PANEL);
        for (long i = 0; i < tokens; i++) {
            if (DELTA)
                ((float *)r.dbeta.data)[(first + i) * r.dbeta.token + head * r.dbeta.head] = sum(load(dbeta + i * W));
            narrow_row(dV + i * s.dv, (T *)r.dv.data + (first + i) * r.dv.token + head * r.dv.head, s.d_v);
        }
        for (long i = 0; i < C; i++)
            for (long j = 0; j < s.dv; j += W) {
                long at = i * s.dv + j;
                store(U + at, load(U + at) * decay.beta[i]);  // from here on with β: what the token wrote
                store(dO_left + at, load(dO + at) * decay.gamma[i]);
                store(dV_left + at, load(dV + at) * decay.gamma[i]);
            }
        transpose(U, s.dv, Ut, C, C, s.dv);
        transpose(dO, s.dv, dOt, C, C, s.dv);
        transpose(dV, s.dv, dVt, C, C, s.dv);

        value_product(dO, E), mask(E, dP);            // dP: Γ ⊙ dO Uᵀ
        if (DELTA) value_product(dV, E), mask(E, B);  // B: Γ ⊙ dV Uᵀ, which below the diagonal is −B
        for (long i = 0; i < C; i++)
            for (long j = 0; j < C; j++) {
                if (!DELTA || j >= i) B[i * C + j] = 0;
                E[i * C + j] = j < i ? dP[i * C + j] * QK[i * C + j] - B[i * C + j] * KK[i * C + j] : 0;
                dPt[j * C + i] = dP[i * C + j];
            }
        for (long i = 0; i < C; i++)  // from −B to B + Bᵀ
            for (long j = 0; j <= i; j++) B[i * C + j] = B[j * C + i] = -B[i * C + j];

        key_gradients(K, Q, S, dS, dK + in_segment * s.dk, dQ + in_segment * s.dk);
        decay_gradients(update(K, Q, S, dS));
        for (long i = 0; i < tokens; i++)
            ((float *)r.dlog_alpha.data)[(first + i) * r.dlog_alpha.token + head * r.dlog_alpha.head] = dlog_alpha[i];
    }

    // From the gradient of y = x · factor, of length `scale`, to that of x.
    void undo_normalise(const float *Y, float *dY, const float *factor, float scale, long tokens) const {
        for (long i = 0; i < tokens; i++) {
            const float *y = Y + i * s.dk;
            float *dy = dY + i * s.dk;
            vec dot = {};
            for (long k = 0; k < s.dk; k += W) dot += load(y + k) * load(dy + k);
            float along = sum(dot) / (scale * scale);
            for (long k = 0; k < s.dk; k += W) store(dy + k, factor[i] * (load(dy + k) - along * load(y + k)));
        }
    }

    // dS: of the key head's group.
    template <class T> void segment(long n, long key_head, long first, long tokens, float *dS) {
        long group = r.H_v / r.H, rows = round_up(tokens, C);
        float scale = 1 / std::sqrt(float(s.d_k));
        read_rows<T>(r.k, first, key_head, tokens, s.d_k, s.dk, K, rows);
        read_rows<T>(r.q, first, key_head, tokens, s.d_k, s.dk, Q, rows);
        if (r.normalise) {
            normalise_rows(K, s, tokens, 1, k_factor);
            normalise_rows(Q, s, tokens, scale, q_factor);
        }
        std::memset(dK, 0, rows * s.dk * sizeof(float));
        std::memset(dQ, 0, rows * s.dk * sizeof(float));
        std::memset(KK, 0, C * C * sizeof(float));  // above the diagonal they are read, times zero
        std::memset(QK, 0, C * C * sizeof(float));
        for (long g = 0; g < group; g++) {
            long head = key_head * group + g;
            read_corrections<T>(first, head, tokens);
            states(first, tokens, head, checkpoint(r, n, first, head));
            for (long at = rows - C; at >= 0; at -= C) {
                transpose(K + at * s.dk, s.dk, Kt, C, C, s.dk);
                transpose(Q + at * s.dk, s.dk, Qt, C, C, s.dk);
                if (DELTA) lower_product(Kt, 1, C, Kt, KK, s, C);
                lower_product(Q + at * s.dk, s.dk, 1, Kt, QK, s, C);
                value_head<T>(first + at, head, tokens - at < C ? tokens - at : C, at, S + at / C * state_size(),
                              dS + g * state_size());
            }
        }
        if (r.normalise) {
            undo_normalise(K, dK, k_factor, 1, tokens);
            undo_normalise(Q, dQ, q_factor, scale, tokens);
        }
        for (long i = 0; i < tokens; i++) {
            narrow_row(dK + i * s.dk, (T *)r.dk.data + (first + i) * r.dk.token + key_head * r.dk.head, s.d_k);
            narrow_row(dQ + i * s.dk, (T *)r.dq.data + (first + i) * r.dq.token + key_head * r.dq.head, s.d_k);
        }
    }
};

}  // namespace

void gated_delta_rule_backward(const Rule &r) {
    long heads = heads_per_task(r, r.H);
    r.bfloat16 ? backward_by_segments<Backward<true>, uint16_t>(r, heads) : backward_by_segments<Backward<true>, float>(r, heads);
}

void linear_attention_backward(const Rule &r) {
    long heads = heads_per_task(r, r.H);
    r.bfloat16 ? backward_by_segments<Backward<false>, uint16_t>(r, heads)
               : backward_by_segments<Backward<false>, float>(r, heads);
}

}  // namespace GDN_ISA
