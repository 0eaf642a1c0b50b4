// The gated delta rule, token by token, backward. It needs nothing but the inputs: of the states it keeps one in BLOCK
// tokens, for one panel at a time, and makes the others again.
#include "gated_delta_rule_recurrent.h"

namespace GDN_ISA {
namespace {
using namespace recurrent;

// total += a ⊙ b, columns of a panel folded to one vector.
INLINE vec add_products(const Row &a, const Row &b, vec total) {
    UNROLL for (int n = 0; n < TILE_N; n++) total = multiply_add(a.c[n], b.c[n], total);
    return total;
}

// Lane i of the result is the sum of the lanes of x[i]. Each round adds the halves of two vectors, interleaved.
INLINE vec sum_each(vec *x) {
    std::make_integer_sequence<int, W> all;
    UNROLL for (int half = W / 2; half > 0; half /= 2) UNROLL for (int i = 0; i < half; i++)
        x[i] = interleave<0>(x[i], x[i + half], all) + interleave<W / 2>(x[i], x[i + half], all);
    return x[0];
}

// A token on the way back, the columns of one panel: e = v − α kᵀS, u = β e, and gradients.
struct Back {
    Token token;
    Row e, u, do_, de;
};

// One pass over a panel of G, the gradient of S_t, and of S = S_{t−1} finishes a token:
//     dk = G u − α S de      dq = α S do + (u·do) k      G' = G − k deᵀ      dα = ⟨G', S⟩      dS = α G'
// and begins the one before it, whose G is dS + q doᵀ: du = Gᵀk, from which follow de = β du and dβ = du·e. Either half
// may be left out.
template <bool FINISH, bool BEGIN>
INLINE void sweep_back(float *G, const float *S, long dk, const Back &now, const Back &before, float *dk_now, float *dq_now,
                       float &dalpha, Row &du) {
    Row minus_de = now.de.scaled(-1), minus_alpha_de = minus_de.scaled(now.token.alpha), dus[CHAINS];
    float u_do = FINISH ? sum(add_products(now.u, now.do_, vec{})) : 0;
    vec dalphas[CHAINS] = {};
    for (long i = 0; i < dk; i += W) {
        vec dk_lanes[W], dq_lanes[W];
        UNROLL for (int j = 0; j < W; j++) {
            Row g = Row::load_from(G + (i + j) * PANEL);
            if (FINISH) {
                Row S_i = Row::load_from(S + (i + j) * PANEL);
                dq_lanes[j] = add_products(S_i, now.do_, vec{});
                dk_lanes[j] = add_products(g, now.u, add_products(S_i, minus_alpha_de, vec{}));
                g.add_product(broadcast(now.token.k[i + j]), minus_de);
                dalphas[j % CHAINS] = add_products(g, S_i, dalphas[j % CHAINS]);
                g = g.scaled(now.token.alpha);
            }
            if (BEGIN) {
                g.add_product(broadcast(before.token.q[i + j]), before.do_);
                dus[j % CHAINS].add_product(broadcast(before.token.k[i + j]), g);
            }
            g.store_to(G + (i + j) * PANEL);
        }
        if (!FINISH) continue;
        store(dk_now + i, load(dk_now + i) + sum_each(dk_lanes));
        store(dq_now + i, load(dq_now + i) + now.token.alpha * sum_each(dq_lanes) + u_do * load(now.token.k + i));
    }
    dalpha = sum(dalphas[0] + dalphas[1]);
    dus[0].add(dus[1]);
    du = dus[0];
}

// A task: one sequence, one key head and its group of value heads. Panel by panel the tokens are run once to keep e of
// every token and S of every block; then, block by block from the last, S of every token is made again.
struct Backward {
    const Rule &r;
    Sizes s;
    long L, panel;
    Keys keys;
    float *G, *blocks, *states, *E, *dK, *dQ;  // [panel], [L / BLOCK, panel], [BLOCK, panel], [L, PANEL], [L, dk] twice

    Backward(const Rule &r, long L, Take &take)
        : r(r), s(r.d_k, r.d_v), L(L), panel(s.dk * PANEL), keys(r, s, take), G(take(panel)),
          blocks(take((L / BLOCK + 1) * panel)), states(take(BLOCK * panel)), E(take(L * PANEL)), dK(take(L * s.dk)),
          dQ(take(L * s.dk)) {}

    template <class T> void recompute(long begin, long head, long column, const float *state) {
        long columns = s.d_v - column;
        read_panel(state + column, s, columns, blocks);
        for (long first = 0; first < L; first += BLOCK) {
            long tokens = std::min<long>(L - first, BLOCK);
            float *S = blocks + first / BLOCK * panel;
            View next = {tokens == BLOCK ? S + panel : states, PANEL};
            keys.read<T>(begin + first, head * r.H / r.H_v, tokens);
            run_panel(
                keys, begin + first, tokens, head, {S, PANEL}, {states, PANEL}, next,
                [&](long t) { return Row::read(at<T>(r.v, begin + first + t, head) + column, columns); },
                [&](long t, const Corrected &c) { c.e.store_to(E + (first + t) * PANEL); });
        }
    }

    template <class T> Back token(long begin, long first, long t, long head, long column) {
        Back b;
        b.token = keys.token(begin + first, t, head);
        b.e = Row::load_from(E + (first + t) * PANEL);
        b.u = b.e.scaled(b.token.beta);
        b.do_ = Row::read(at<T>(r.do_, begin + first + t, head) + column, s.d_v - column);
        return b;
    }

    template <class T> void block(long begin, long first, long head, long column) {
        long tokens = std::min<long>(L - first, BLOCK);
        Back now, before;
        keys.read<T>(begin + first, head * r.H / r.H_v, tokens);
        float *S = blocks + first / BLOCK * panel;
        for (long t = 0; t + 1 < tokens; t++, S = states + t * panel) {
            Token k = keys.token(begin + first, t, head);
            Row u = Row::load_from(E + (first + t) * PANEL).scaled(k.beta);
            Update update{{S, PANEL}, {states + (t + 1) * panel, PANEL}, k, u};
            for (long i = 0; i < s.d_k; i++) update.row(i);
        }
        now = token<T>(begin, first, tokens - 1, head, column);
        float dalpha;
        Row du;
        sweep_back<false, true>(G, S, s.dk, now, now, nullptr, nullptr, dalpha, du);
        for (long t = tokens - 1; t >= 0; t--, now = before) {
            long i = begin + first + t;
            now.de = du.scaled(now.token.beta);
            now.de.write(at<T>(r.dv, i, head) + column, s.d_v - column);
            float *dbeta = at<float>(r.dbeta, i, head), *dlog_alpha = at<float>(r.dlog_alpha, i, head);
            *dbeta = (column ? *dbeta : 0) + sum(add_products(du, now.e, vec{}));
            float *dk = dK + (first + t) * s.dk, *dq = dQ + (first + t) * s.dk;
            if (t == 0) {
                sweep_back<true, false>(G, blocks + first / BLOCK * panel, s.dk, now, now, dk, dq, dalpha, du);
            } else {
                before = token<T>(begin, first, t - 1, head, column);
                sweep_back<true, true>(G, states + t * panel, s.dk, now, before, dk, dq, dalpha, du);
            }
            *dlog_alpha = (column ? *dlog_alpha : 0) + now.token.alpha * dalpha;
        }
    }

    // Through x = f x_raw, f = scale / √(‖x_raw‖² + EPS).
    void through_norm(float *dx, const float *x, float factor, float scale) {
        float along = dot(dx, x, s.dk) / (scale * scale);
        for (long i = 0; i < s.dk; i += W) store(dx + i, factor * (load(dx + i) - along * load(x + i)));
    }

    template <class T> void write_keys(long begin, long key_head) {
        for (long first = 0; first < L; first += BLOCK) {
            long tokens = std::min<long>(L - first, BLOCK);
            if (r.normalise) keys.read<T>(begin + first, key_head, tokens);
            for (long t = 0; t < tokens; t++) {
                float *dk = dK + (first + t) * s.dk, *dq = dQ + (first + t) * s.dk;
                if (r.normalise) {
                    through_norm(dk, keys.K + t * s.dk, keys.k_factor[t], 1);
                    through_norm(dq, keys.Q + t * s.dk, keys.q_factor[t], 1 / std::sqrt(float(s.d_k)));
                }
                narrow_row(dk, at<T>(r.dk, begin + first + t, key_head), s.d_k);
                narrow_row(dq, at<T>(r.dq, begin + first + t, key_head), s.d_k);
            }
        }
    }

    template <class T> void sequence(long n, long key_head) {
        long begin = r.ends[n], group = r.H_v / r.H;
        // Rows behind d_k stay zero: nothing writes them but with what it read there.
        std::memset(G, 0, panel * sizeof(float));
        std::memset(states, 0, BLOCK * panel * sizeof(float));
        std::memset(blocks, 0, (L / BLOCK + 1) * panel * sizeof(float));
        std::memset(dK, 0, L * s.dk * sizeof(float));
        std::memset(dQ, 0, L * s.dk * sizeof(float));
        for (long head = key_head * group; head < (key_head + 1) * group; head++)
            for (long column = 0; column < s.d_v; column += PANEL) {
                long at_state = (n * r.H_v + head) * s.d_k * s.d_v;
                read_panel(r.dlast_state + at_state + column, s, s.d_v - column, G);
                recompute<T>(begin, head, column, r.state + at_state);
                for (long first = (L - 1) / BLOCK * BLOCK; first >= 0 && L; first -= BLOCK)
                    block<T>(begin, first, head, column);
                write_panel(G, s, s.d_v - column, r.dstate + at_state + column);
            }
        write_keys<T>(begin, key_head);
    }
};

template <class T> void run_backward(const Rule &r) {
    gdn::parallel(r.N * r.H, r.threads, [&](int64_t task) {
        long n = task / r.H, L = r.ends[n + 1] - r.ends[n];
        in_scratch<Backward>(r, L).sequence<T>(n, task % r.H);
    });
}

}  // namespace

void gated_delta_rule_recurrent_backward(const Rule &r) {
    r.bfloat16 ? run_backward<uint16_t>(r) : run_backward<float>(r);
}

}  // namespace GDN_ISA
