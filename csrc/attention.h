// What the kernels of attention share: matrices in panels, sequences behind their cache, and who sees whom.
#pragma once
#include <algorithm>

#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;

// A matrix as panels of PANEL columns, each [rows, PANEL]: what a register tile reads then lies in one piece.
struct Panels {
    float *data;
    long rows;
    INLINE float *at(long row, long column) const { return data + (column / PANEL * rows + row) * PANEL + column % PANEL; }
    long size(long columns) const { return rows * round_up(columns, PANEL); }
    void clear(long columns) const { std::memset(data, 0, size(columns) * sizeof(float)); }
};
inline Panels take_panels(Take &take, long rows, long columns) { return {take(rows * round_up(columns, PANEL)), rows}; }

// t += rows i … of X, times the columns j … of Y: over the `depth` columns of X from `from` on.
template <int M, int N> INLINE void add_rows_times(Tile<M, N> &t, Panels X, long i, Panels Y, long j, long from, long depth) {
    for (long end = from + depth; from < end;) {
        long next = std::min(end, (from / PANEL + 1) * PANEL);
        t.add_product(X.at(i, from), PANEL, 1, Y.at(from, j), PANEL, next - from);
        from = next;
    }
}

template <int distance, int... i> INLINE vec exchange(vec x, std::integer_sequence<int, i...>) {
#ifdef __clang__
    return __builtin_shufflevector(x, x, (i ^ distance)...);
#else
    return __builtin_shuffle(x, ints{(i ^ distance)...});
#endif
}
template <int distance = W / 2> INLINE float largest(vec x) {
    vec y = exchange<distance>(x, std::make_integer_sequence<int, W>());
    x = x > y ? x : y;
    if constexpr (distance > 1) return largest<distance / 2>(x);
    return x[0];
}

// One sequence: its keys are the last `past` tokens of the cache, and then its `count` tokens.
struct Sequence {
    long n, first, count, length, past;

    Sequence(const Attention &a, long n)
        : n(n), first(a.ends[n]), count(a.ends[n + 1] - first), length(a.lengths[n]),
          past(std::min({length, long(a.capacity), long(a.window) - 1})) {}

    // The first key that token t sees, and the one behind the last.
    long begin(const Attention &a, long t) const { return std::max(0l, past + t + 1 - long(a.window)); }
    long end(long t) const { return past + t + 1; }
    // The first token that sees key i, and the one behind the last.
    long first_reader(long i) const { return std::max(0l, i - past); }
    long last_reader(const Attention &a, long i) const {
        return a.window < count + past ? std::min(count, i - past + long(a.window)) : count;
    }

    template <class T> T *token(const Rows &x, long t, long head) const {
        return (T *)x.data + (first + t) * x.token + head * x.head;
    }
    template <class T> T *key(const Attention &a, const Rows &x, void *cache, long width, long i, long head) const {
        if (i >= past) return token<T>(x, i - past, head);
        long slot = (length - past + i) % a.capacity;
        return (T *)cache + ((n * a.capacity + slot) * a.H_kv + head) * width;
    }
    // Cosines and sines of token t; keys of the cache were turned when they were written.
    const float *turn(const Attention &a, long t) const { return a.turns && t >= 0 ? a.turns + (length + t) * a.d : nullptr; }
};

// Turns the pairs (x_i, x_{i + d/2}) by the angles of `turn`, or back. NULL: not at all.
INLINE void rotate(float *x, const float *turn, long d, float sign) {
    if (!turn) return;
    for (long i = 0, half = d / 2; i < half; i++) {
        float a = x[i], b = x[i + half], cos = turn[i], sin = sign * turn[i + half];
        x[i] = a * cos - b * sin, x[i + half] = b * cos + a * sin;
    }
}

INLINE void row_to_panels(const float *row, Panels X, long i, long columns) {
    for (long j = 0; j < columns; j += W) store(X.at(i, j), load(row + j));
}
INLINE void row_from_panels(Panels X, long i, long columns, float factor, float *row) {
    for (long j = 0; j < columns; j += W) store(row + j, load(X.at(i, j)) * factor);
}

// The query of token t, turned and scaled so that a product with a key is a score · log₂ e. row: [padded].
template <class T> void read_query(const Attention &a, const Sequence &s, long t, long head, float *row, long padded) {
    float scale = LOG2_E / std::sqrt(float(a.d));
    widen_row(s.token<T>(a.q, t, head), row, a.d, padded);
    rotate(row, s.turn(a, t), a.d, 1);
    for (long j = 0; j < padded; j++) row[j] *= scale;
}
// PANEL keys from key i on, turned, those from `end` on zero. rows: [PANEL, padded].
template <class T> void read_keys(const Attention &a, const Sequence &s, long i, long end, long head, float *rows, long padded) {
    for (float *row = rows; row < rows + PANEL * padded; row += padded, i++) {
        if (i >= end) {
            std::memset(row, 0, padded * sizeof(float));
            continue;
        }
        widen_row(s.key<T>(a, a.k, a.k_cache, a.d, i, head), row, a.d, padded);
        rotate(row, s.turn(a, i - s.past), a.d, 1);
    }
}

// What rows from token t on see of `keys` keys from `first` on: columns `low` to `high` of their scores, each row its own part.
struct Seen {
    long low, high;
    long past_low, past_high;  // of the first row: those of row m are m more
    Seen(const Attention &a, const Sequence &s, long t, long rows, long first, long keys)
        : past_low(s.past + t + 1 - a.window - first), past_high(s.end(t) - first) {
        low = std::max(0l, past_low), high = std::min(keys, past_high + rows - 1);
    }
    bool any() const { return low < high; }
    long first_panel() const { return low / PANEL * PANEL; }
    bool whole(long j, long rows) const { return past_low + rows - 1 <= j && j + PANEL <= past_high; }
    // Scores of the columns j … that a row does not see become `hidden`.
    template <int M, int N> INLINE void hide(Tile<M, N> &t, long j, long keys, float hidden) const {
        ints column;
        UNROLL for (int i = 0; i < W; i++) column[i] = i;
        UNROLL for (int m = 0; m < M; m++) {
            int low = std::max(-1l, past_low + m - j), high = std::min(keys, past_high + m) - j;
            UNROLL for (int n = 0; n < N; n++) {
                ints at = column + n * W;
                t.c[m][n] = (at >= low) & (at < high) ? t.c[m][n] : broadcast(hidden);
            }
        }
    }
};

}  // namespace GDN_ISA
