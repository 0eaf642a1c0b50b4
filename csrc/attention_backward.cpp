// Causal softmax attention, backward: a task has some keys of one key head and passes over all queries that see them. With
// P = softmax(S), S = Q Kᵀ / √d made again from what forward kept of each row,
//     dV = Pᵀ dO    dP = dO Vᵀ    dS = P ⊙ (dP − rowsum(dO ⊙ O))    dQ = dS K / √d    dK = dSᵀ Q / √d
#include <vector>

#include "attention.h"

namespace GDN_ISA {
namespace {

constexpr long QUERIES = 64, KEYS = 64;  // of the products of one step
constexpr long TASKS = 8;                // at least so many of equal work, if there are heads and keys for it

// Keys `begin` to `end` of a sequence. A sequence of several parts has dQ as a sum over them, in the order of the parts.
struct Part {
    long n, begin, end, index, parts;
    float *dQ;  // [part, count, H, d] of the sequence; NULL if it has one part
};

template <class T> struct Backward {
    const Attention &a;
    Sequence s;
    Part part;
    long group, dk, dv, first, count, rows, keys;  // first, count: the queries; rows, keys: padded
    float *row;                                    // a row being read or written, [PANEL, the larger of dk, dv]
    Panels Q, dO, dQ;                              // of one head
    float *top, *share, *delta;                    // of each query: what forward kept, and rowsum(dO ⊙ O)
    Panels K, Kt, Vt, P, dS, dK, dV;               // dK and dV of the part, the others of one step

    Backward(const Attention &a, const Part &part, Take &take)
        : a(a), s(a, part.n), part(part), group(a.H / a.H_kv), dk(round_up(a.d, W)), dv(round_up(a.d_v, W)),
          first(s.first_reader(part.begin)), count(s.last_reader(a, part.end - 1) - first), rows(round_up(count, QUERIES)),
          keys(round_up(part.end - part.begin, KEYS)), row(take(PANEL * std::max(dk, dv))), Q(take_panels(take, rows, dk)),
          dO(take_panels(take, rows, dv)), dQ(take_panels(take, rows, dk)), top(take(rows)), share(take(rows)), delta(take(rows)),
          K(take_panels(take, KEYS, dk)), Kt(take_panels(take, dk, KEYS)), Vt(take_panels(take, dv, KEYS)),
          P(take_panels(take, QUERIES, KEYS)), dS(take_panels(take, QUERIES, KEYS)), dK(take_panels(take, keys, dk)),
          dV(take_panels(take, keys, dv)) {}

    // Queries behind the last are zero: whole tiles are computed, and not used.
    void read_queries(long head) {
        Q.clear(dk), dO.clear(dv), dQ.clear(dk);
        for (long i = 0; i < count; i++) {
            long t = first + i;
            read_query<T>(a, s, t, head, row, dk);
            row_to_panels(row, Q, i, dk);
            widen_row(s.token<T>(a.do_, t, head), row, a.d_v, dv);
            row_to_panels(row, dO, i, dv);
            const float *kept = a.softmax + ((s.first + t) * a.H + head) * 2;
            top[i] = kept[0], share[i] = kept[1];
        }
        for (long i = count; i < rows; i++) top[i] = share[i] = delta[i] = 0;
        for (long i = 0; i < count; i += TILE_M) read_delta(i, std::min<long>(TILE_M, count - i), head);
    }

    // rowsum(dO ⊙ O), summed as dO Vᵀ is: where one key is seen, O = V, and their difference is then exactly 0.
    KERNEL void read_delta(long i, long n, long head) {
        for (long m = 0; m < n; m++) widen_row(s.token<T>(a.o, first + i + m, head), row + m * dv, a.d_v, dv);
        float total[TILE_M] = {};
        for (long j = 0; j < a.d_v; j++)
            UNROLL for (int m = 0; m < TILE_M; m++) total[m] += *dO.at(i + m, j) * row[m * dv + j];
        for (long m = 0; m < n; m++) delta[i + m] = total[m];
    }

    // K, and K and V transposed, of n keys from `from` on; those behind the last are zero.
    KERNEL void read_keys_and_values(long from, long n, long head) {
        for (long p = 0; p < n; p += PANEL) {
            read_keys<T>(a, s, from + p, from + n, head, row, dk);
            for (long i = 0; i < PANEL; i++) row_to_panels(row + i * dk, K, p + i, dk);
            transpose(row, dk, Kt.at(0, p), PANEL, PANEL, dk);
            long values = std::min<long>(PANEL, n - p);
            for (long i = 0; i < values; i++)
                widen_row(s.key<T>(a, a.v, a.v_cache, a.d_v, from + p + i, head), row + i * dv, a.d_v, dv);
            std::memset(row + values * dv, 0, (PANEL - values) * dv * sizeof(float));
            transpose(row, dv, Vt.at(0, p), PANEL, PANEL, dv);
        }
    }

    // P and dS of a row tile: query i, row m of the step.
    KERNEL void softmax(long i, long m, const Seen &seen, long n) {
        for (long j = seen.first_panel(); j < seen.high; j += PANEL) {
            Tile<TILE_M, TILE_N> t, p;
            t.zero();
            add_rows_times(t, Q, i, Kt, j, 0, a.d);
            if (!seen.whole(j, TILE_M)) seen.hide(t, j, n, -INFINITY);
            UNROLL for (int r = 0; r < TILE_M; r++)
                UNROLL for (int c = 0; c < TILE_N; c++) t.c[r][c] = exp2(t.c[r][c] - top[i + r]) * share[i + r];
            t.store_to(P.at(m, j), PANEL);
            t.zero();
            add_rows_times(t, dO, i, Vt, j, 0, a.d_v);
            p.load_from(P.at(m, j), PANEL);
            UNROLL for (int r = 0; r < TILE_M; r++)
                UNROLL for (int c = 0; c < TILE_N; c++) t.c[r][c] = p.c[r][c] * (t.c[r][c] - delta[i + r]);
            t.store_to(dS.at(m, j), PANEL);
        }
    }

    // Y += X Z for one row tile and all columns: add(t, j) adds the product to the tile of columns j ….
    template <class Add> INLINE void each_tile(Panels Y, long i, long columns, Add add) {
        long j = 0;
        for (; j + W < columns; j += PANEL) {
            Tile<TILE_M, TILE_N> t;
            t.load_from(Y.at(i, j), PANEL);
            add(t, j);
            t.store_to(Y.at(i, j), PANEL);
        }
        if (j < columns) {
            Tile<TILE_M, 1> t;
            t.load_from(Y.at(i, j), PANEL);
            add(t, j);
            t.store_to(Y.at(i, j), PANEL);
        }
    }
    KERNEL void add_dQ(long i, long m, const Seen &seen) {
        each_tile(dQ, i, dk, [&](auto &t, long j) INLINE_LAMBDA { add_rows_times(t, dS, m, K, j, seen.low, seen.high - seen.low); });
    }
    // A row tile of dV or dK, of key `key` of the step: Σ over the queries m to end of X[query, key] Z[query].
    KERNEL void add_columns_times(Panels Y, long to, long columns, Panels X, long key, Panels Z, long i, long m, long end) {
        each_tile(Y, to, columns, [&](auto &t, long j) INLINE_LAMBDA {
            t.add_product(X.at(m, key), 1, PANEL, Z.at(i + m, j), PANEL, end - m);
        });
    }

    // The queries from i on with the keys from `from` on.
    void step(long i, long from, long n) {
        long queries = std::min(QUERIES, count - i);
        for (long m = 0; m < queries; m += TILE_M) {
            Seen seen(a, s, first + i + m, TILE_M, from, n);
            if (!seen.any()) continue;
            softmax(i + m, m, seen, n);
            add_dQ(i + m, m, seen);
        }
        for (long key = 0; key < n; key += TILE_M) {
            long begin = std::max(0l, s.first_reader(from + key) - first - i);
            long end = std::min(queries, s.last_reader(a, std::min(from + key + TILE_M, part.end) - 1) - first - i);
            if (begin >= end) continue;
            long to = from - part.begin + key;
            add_columns_times(dV, to, dv, P, key, dO, i, begin, end);
            add_columns_times(dK, to, dk, dS, key, Q, i, begin, end);
        }
    }

    void write_dQ(long head) {
        float scale = 1 / std::sqrt(float(a.d));
        for (long i = 0; i < count; i++) {
            long t = first + i;
            row_from_panels(dQ, i, dk, scale, row);
            rotate(row, s.turn(a, t), a.d, -1);
            if (part.dQ) std::memcpy(part.dQ + ((part.index * s.count + t) * a.H + head) * a.d, row, a.d * sizeof(float));
            else narrow_row(row, s.token<T>(a.dq, t, head), a.d);
        }
    }
    void write_dK_dV(long head) {
        for (long i = part.begin; i < part.end; i++) {
            row_from_panels(dK, i - part.begin, dk, LN_2, row);  // Q has log₂ e in it
            rotate(row, s.turn(a, i - s.past), a.d, -1);
            narrow_row(row, s.key<T>(a, a.dk, a.dk_cache, a.d, i, head), a.d);
            row_from_panels(dV, i - part.begin, dv, 1, row);
            narrow_row(row, s.key<T>(a, a.dv, a.dv_cache, a.d_v, i, head), a.d_v);
        }
    }

    void run(long key_head) {
        dK.clear(dk), dV.clear(dv);
        for (long g = 0; g < group; g++) {
            read_queries(key_head * group + g);
            for (long from = part.begin; from < part.end; from += KEYS) {
                long n = std::min(KEYS, part.end - from);
                read_keys_and_values(from, n, key_head);
                long begin = (s.first_reader(from) - first) / QUERIES * QUERIES, end = s.last_reader(a, from + n - 1) - first;
                for (long i = begin; i < end; i += QUERIES) step(i, from, n);
            }
            write_dQ(key_head * group + g);
        }
        write_dK_dV(key_head);
    }
};

// Pairs of query and key, about.
double work(const Attention &a, const Sequence &s) {
    double seen = std::min<double>(a.window, s.past + s.count);
    return s.count * (seen + 1 - seen * std::min<double>(seen, s.count) / (2. * s.count + 1));
}

// Every sequence whole, but those that would keep one thread busy while others wait in parts. Not a matter of the number of
// threads, on which results must not depend.
std::vector<Part> parts_of(const Attention &a, std::vector<std::vector<float>> &sums) {
    double total = 0;
    for (long n = 0; n < a.N; n++) total += a.H_kv * work(a, Sequence(a, n));
    std::vector<std::pair<double, Part>> sized;
    for (long n = 0; n < a.N; n++) {
        Sequence s(a, n);
        if (!s.count) continue;
        long keys = s.past + s.count, parts = std::min<long>(std::ceil(TASKS * work(a, s) / total), (keys + 255) / 256);
        long length = round_up((keys + parts - 1) / parts, KEYS);
        parts = (keys + length - 1) / length;
        float *dQ = nullptr;
        if (parts > 1) {
            sums.emplace_back(parts * s.count * a.H * a.d);
            dQ = sums.back().data();
        }
        for (long i = 0; i < parts; i++) {
            Part part{n, i * length, std::min(keys, (i + 1) * length), i, parts, dQ};
            sized.push_back({work(a, s) * (2 * (parts - i) - 1) / (parts * parts), part});
        }
    }
    std::stable_sort(sized.begin(), sized.end(), [](auto &x, auto &y) { return x.first > y.first; });
    std::vector<Part> all;
    for (auto &x : sized) all.push_back(x.second);
    return all;
}

// dq of token t: the sum over the parts of its sequence.
template <class T> void add_parts(const Attention &a, const Part &part, long t) {
    Sequence s(a, part.n);
    std::vector<float> total(a.d);
    for (long head = 0; head < a.H; head++) {
        for (long j = 0; j < a.d; j++) {
            total[j] = 0;
            for (long i = 0; i < part.parts; i++) total[j] += part.dQ[((i * s.count + t) * a.H + head) * a.d + j];
        }
        narrow_row(total.data(), s.token<T>(a.dq, t, head), a.d);
    }
}

template <class T> void backward(const Attention &a) {
    if (!a.H) return;
    std::vector<std::vector<float>> sums;
    std::vector<Part> parts = parts_of(a, sums);
    gdn::parallel(parts.size() * a.H_kv, a.threads, [&](int64_t task) {
        in_scratch<Backward<T>>(a, parts[task / a.H_kv]).run(task % a.H_kv);
    });
    for (const Part &part : parts)
        if (part.dQ && part.index == 0)
            gdn::parallel(a.ends[part.n + 1] - a.ends[part.n], a.threads, [&](int64_t t) { add_parts<T>(a, part, t); });
}

}  // namespace

void attention_backward(const Attention &a) { a.bfloat16 ? backward<uint16_t>(a) : backward<float>(a); }

}  // namespace GDN_ISA
