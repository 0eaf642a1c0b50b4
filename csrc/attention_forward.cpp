// Causal softmax attention, forward, in the manner of FlashAttention: a task has a block of queries of one key head and
// passes over the keys they see, tile by tile. Of each row it holds the largest score so far and the sums relative to it.
#include <cfloat>
#include <vector>

#include "attention.h"

namespace GDN_ISA {
namespace {

constexpr long QUERIES = 128;  // rows of a task, of all heads that share the keys
constexpr long KEYS = 128;     // of a tile

struct Block {
    long n, first;  // sequence and first token
};

// Blocks of every sequence, those that see most first, so that threads end together.
std::vector<Block> blocks_of(const Attention &a, long queries) {
    std::vector<std::pair<long, Block>> sized;
    for (long n = 0; n < a.N; n++) {
        Sequence s(a, n);
        for (long t = 0; t < s.count; t += queries) sized.push_back({s.end(t) - s.begin(a, t), {n, t}});
    }
    std::stable_sort(sized.begin(), sized.end(), [](auto &x, auto &y) { return x.first > y.first; });
    std::vector<Block> blocks;
    for (auto &x : sized) blocks.push_back(x.second);
    return blocks;
}

template <class T> struct Forward {
    const Attention &a;
    long group, queries, dk, dv;  // query heads of the key head, rows of each, padded sizes
    float *row;                   // a row being read or written, [PANEL, dk]
    Panels Q, Kt, V, P, O;        // Q, O: of all heads, one below the other. P: scores and then exp of one row tile
    float *top, *total, *factor;  // of each row the largest score, W partial sums of exp, and what the old ones shrink by

    Forward(const Attention &a, long queries, Take &take)
        : a(a), group(a.H / a.H_kv), queries(queries), dk(round_up(a.d, W)), dv(round_up(a.d_v, W)),
          row(take(PANEL * std::max(dk, dv))), Q(take_panels(take, group * queries, dk)), Kt(take_panels(take, dk, KEYS)),
          V(take_panels(take, KEYS, dv)), P(take_panels(take, TILE_M, KEYS)), O(take_panels(take, group * queries, dv)),
          top(take(group * queries)), total(take(group * queries * W)), factor(take(W)) {}

    // Rows behind the last query, up to a whole tile, are zero.
    void read_queries(const Sequence &s, long first, long count, long key_head) {
        Q.clear(dk);
        for (long g = 0; g < group; g++)
            for (long i = 0; i < count; i++) {
                read_query<T>(a, s, first + i, key_head * group + g, row, dk);
                row_to_panels(row, Q, g * queries + i, dk);
            }
    }

    // K transposed and V, of the keys from `first` on; columns of Kt behind the last are zero.
    KERNEL void read_keys_and_values(const Sequence &s, long first, long keys, long head) {
        for (long p = 0; p < keys; p += PANEL) {
            read_keys<T>(a, s, first + p, first + keys, head, row, dk);
            transpose(row, dk, Kt.at(0, p), PANEL, PANEL, dk);
        }
        for (long i = 0; i < keys; i++) {
            widen_row(s.key<T>(a, a.v, a.v_cache, a.d_v, first + i, head), row, a.d_v, dv);
            row_to_panels(row, V, i, dv);
        }
    }

    KERNEL void scores(long i, const Seen &seen, long keys) {
        for (long j = seen.first_panel(); j < seen.high; j += PANEL) {
            Tile<TILE_M, TILE_N> t;
            t.zero();
            add_rows_times(t, Q, i, Kt, j, 0, a.d);
            if (!seen.whole(j, TILE_M)) seen.hide(t, j, keys, -INFINITY);
            t.store_to(P.at(0, j), PANEL);
        }
    }

    // Scores become exp(score − largest).
    KERNEL void soften(long i, const Seen &seen) {
        for (int m = 0; m < TILE_M; m++) {
            vec most = load(P.at(m, seen.first_panel()));
            for (long j = seen.first_panel(); j < seen.high; j += PANEL)
                UNROLL for (int n = 0; n < TILE_N; n++) {
                    vec x = load(P.at(m, j) + n * W);
                    most = x > most ? x : most;
                }
            float before = top[i + m], now = std::max(before, largest(most));
            factor[m] = before - now;
            top[i + m] = now;
        }
        store(factor, exp2(load(factor)));
        for (int m = 0; m < TILE_M; m++) {
            vec added = {};
            for (long j = seen.first_panel(); j < seen.high; j += PANEL)
                UNROLL for (int n = 0; n < TILE_N; n++) {
                    float *p = P.at(m, j) + n * W;
                    vec e = exp2(load(p) - top[i + m]);
                    store(p, e);
                    added += e;
                }
            store(total + (i + m) * W, load(total + (i + m) * W) * factor[m] + added);
        }
    }

    KERNEL void add_values(long i, const Seen &seen) {
        long j = 0;
        for (; j + W < dv; j += PANEL) add_values_to<TILE_N>(i, j, seen);
        if (j < dv) add_values_to<1>(i, j, seen);
    }
    template <int N> INLINE void add_values_to(long i, long j, const Seen &seen) {
        Tile<TILE_M, N> t;
        t.load_from(O.at(i, j), PANEL);
        t.scale_rows(factor);
        add_rows_times(t, P, 0, V, j, seen.low, seen.high - seen.low);
        t.store_to(O.at(i, j), PANEL);
    }

    void write(const Sequence &s, long first, long count, long key_head) {
        for (long g = 0; g < group; g++)
            for (long i = 0; i < count; i++) {
                long at = g * queries + i, head = key_head * group + g;
                float share = 1 / sum(load(total + at * W));
                row_from_panels(O, at, dv, share, row);
                narrow_row(row, s.token<T>(a.o, first + i, head), a.d_v);
                if (!a.softmax) continue;
                float *kept = a.softmax + ((s.first + first + i) * a.H + head) * 2;
                kept[0] = top[at], kept[1] = share;
            }
    }

    void run(const Block &block, long key_head) {
        Sequence s(a, block.n);
        long count = std::min(queries, s.count - block.first), rows = group * queries;
        read_queries(s, block.first, count, key_head);
        std::fill_n(top, rows, -FLT_MAX);
        std::memset(total, 0, rows * W * sizeof(float));
        O.clear(dv);
        for (long first = s.begin(a, block.first), end = s.end(block.first + count - 1); first < end; first += KEYS) {
            long keys = std::min(KEYS, end - first);
            read_keys_and_values(s, first, keys, key_head);
            for (long g = 0; g < group; g++)
                for (long i = 0; i < count; i += TILE_M) {
                    Seen seen(a, s, block.first + i, TILE_M, first, keys);
                    if (!seen.any()) continue;
                    scores(g * queries + i, seen, keys);
                    soften(g * queries + i, seen);
                    add_values(g * queries + i, seen);
                }
        }
        write(s, block.first, count, key_head);
    }
};

template <class T> void forward(const Attention &a) {
    if (!a.H) return;
    long queries = std::max<long>(2 * TILE_M, round_up(QUERIES * a.H_kv / a.H, TILE_M));
    std::vector<Block> blocks = blocks_of(a, queries);
    gdn::parallel(blocks.size() * a.H_kv, a.threads, [&](int64_t task) {
        in_scratch<Forward<T>>(a, queries).run(blocks[task / a.H_kv], task % a.H_kv);
    });
}

}  // namespace

void attention_forward(const Attention &a) { a.bfloat16 ? forward<uint16_t>(a) : forward<float>(a); }

}  // namespace GDN_ISA
