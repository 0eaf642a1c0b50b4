// What the kernels that go chunk by chunk share: padded sizes, rows and states in and out, and the walk over the chunks.
#pragma once
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {

constexpr int C = 16;                 // tokens in a chunk
constexpr int UPDATE_M = 2 * TILE_M;  // rows of the tile that updates the state, one vector wide

// Sizes padded to whole tiles; the padding is zero and stays zero.
struct Sizes {
    long d_k, d_v, dk, dv, panels;
    Sizes(long d_k, long d_v)
        : d_k(d_k), d_v(d_v), dk(round_up(d_k, 16)), dv(round_up(d_v, PANEL)), panels(dv / PANEL) {}
};

// Reads the rows of one head into [rows, padded]; those behind the last token are zero.
template <class T>
void read_rows(const Rows &x, long first, long head, long tokens, long d, long padded, float *to, long rows = C) {
    for (long i = 0; i < tokens; i++)
        widen_row((const T *)x.data + (first + i) * x.token + head * x.head, to + i * padded, d, padded);
    if (tokens < rows) std::memset(to + tokens * padded, 0, (rows - tokens) * padded * sizeof(float));
}

// A register tile to and from rows of an operand; rows behind the last token and columns behind d_v are left out.
template <class T, int M, int N> INLINE void read_tile(Tile<M, N> &t, const T *x, long stride, long rows, long columns) {
    if (rows >= M && columns >= N * W) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) t.c[m][n] = load(x + m * stride + n * W);
        return;
    }
    float padded[M][N * W] = {};
    for (long m = 0; m < M && m < rows; m++)
        for (long j = 0; j < N * W && j < columns; j++) padded[m][j] = widen(x[m * stride + j]);
    t.load_from(padded[0], N * W);
}
template <class T, int M, int N>
INLINE void write_tile(const Tile<M, N> &t, T *x, long stride, long rows, long columns) {
    if (rows >= M && columns >= N * W) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) store(x + m * stride + n * W, t.c[m][n]);
        return;
    }
    float padded[M][N * W];
    t.store_to(padded[0], N * W);
    for (long m = 0; m < M && m < rows; m++)
        for (long j = 0; j < N * W && j < columns; j++) narrow(padded[m][j], x + m * stride + j);
}

// A state [d_k, d_v] as panels [panels, dk, PANEL], and back.
inline void read_state(const float *state, const Sizes &s, float *S) {
    for (long p = 0; p < s.panels; p++) {
        long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
        for (long k = 0; k < s.dk; k++)
            widen_row(state + k * s.d_v + p * PANEL, S + (p * s.dk + k) * PANEL, k < s.d_k ? columns : 0, PANEL);
    }
}
inline void write_state(const float *S, const Sizes &s, float *state) {
    for (long p = 0; p < s.panels; p++) {
        long columns = s.d_v - p * PANEL < PANEL ? s.d_v - p * PANEL : PANEL;
        for (long k = 0; k < s.d_k; k++)
            std::memcpy(state + k * s.d_v + p * PANEL, S + (p * s.dk + k) * PANEL, columns * sizeof(float));
    }
}

// The next chunk's rows, asked for a few cache lines at a time while this chunk is computed: more at once would stall.
struct Ahead {
    struct Block {
        const char *row;
        long stride, lines;
    } blocks[8];
    int count = 0, block = 0, share = 0;
    long rows = 0, left = 0;
    const char *line = nullptr;

    // `heads` neighbouring heads of the tokens from `first` on.
    template <class T> void add(const Rows &x, long first, long head, long heads, long d) {
        blocks[count++] = {(const char *)((const T *)x.data + first * x.token + head * x.head),
                           x.token * long(sizeof(T)), (((heads - 1) * x.head + d) * long(sizeof(T)) + 63) / 64};
    }
    // To be asked for in so many calls.
    void spread(long tokens, long calls) {
        long lines = 0;
        for (int b = 0; b < count; b++) lines += tokens * blocks[b].lines;
        rows = tokens, share = lines / (calls + 1) + 1, line = blocks[0].row, left = blocks[0].lines;
    }
    INLINE void ask() {
        for (int n = 0; n < share && rows > 0; n++) {
            __builtin_prefetch(line, 0, 2);
            line += 64;
            if (--left == 0) turn();
        }
    }
    KERNEL void turn() {
        blocks[block].row += blocks[block].stride;
        if (++block == count) block = 0, rows--;
        line = blocks[block].row, left = blocks[block].lines;
    }
};

// Key heads a task takes together: neighbours lie side by side in memory, tokens a page apart. As many tasks as
// threads, or enough of them to even out.
inline long heads_per_task(const Rule &r, long heads) {
    for (long together = 8; together > 1; together /= 2) {
        long tasks = r.N * heads / together;
        if (heads % together == 0 && (tasks >= 4 * r.threads || (tasks && tasks % r.threads == 0))) return together;
    }
    return 1;
}

// Where the state of a value head before token `first` of sequence n is kept: at least one for each sequence.
inline float *checkpoint(const Rule &r, long n, long first, long head) {
    long place = r.ends[n] / r.interval + n + (first - r.ends[n]) / r.interval;
    return r.checkpoints + (place * r.H_v + head) * r.d_k * r.d_v;
}

// Forward: every sequence chunk by chunk, some neighbouring key heads a task, each with its group of value heads.
// Task(r, heads, group, take) has
//     S                                        [heads · group, panels, dk, PANEL], the states so far
//     look_ahead<T>(first, end, head)          may ask for the rows of the next chunk, from value head `head` on
//     read_keys<T>(first, key_head, tokens)    comes before the value heads of that key head
//     value_head<T>(first, head, tokens, S)    writes the head's outputs and updates its state
template <class Task, class T> void forward_by_chunks(const Rule &r) {
    if (!r.H_v) return;
    long group = r.H_v / r.H;                  // value heads that share a key head's products,
    if (r.N * r.H < 2 * r.threads) group = 1;  // unless there are too few key heads for the threads
    long heads = heads_per_task(r, r.H_v / group), per_task = heads * group, tasks = r.H_v / per_task;
    gdn::parallel(r.N * tasks, r.threads, [&](int64_t task) {
        Task f = in_scratch<Task>(r, heads, group);
        long n = task / tasks, head_0 = task % tasks * per_task, begin = r.ends[n], end = r.ends[n + 1];
        long first_state = (n * r.H_v + head_0) * r.d_k * r.d_v, size = r.d_k * r.d_v, padded = f.s.dk * f.s.dv;
        for (long h = 0; h < per_task; h++) read_state(r.state + first_state + h * size, f.s, f.S + h * padded);
        for (long first = begin; first < end; first += C) {
            long tokens = end - first < C ? end - first : C;
            if (r.checkpoints && (first - begin) % r.interval == 0)
                for (long h = 0; h < per_task; h++) write_state(f.S + h * padded, f.s, checkpoint(r, n, first, head_0 + h));
            f.template look_ahead<T>(first + C, end, head_0);
            for (long h = 0; h < per_task; h++) {
                if (h % group == 0) f.template read_keys<T>(first, (head_0 + h) * r.H / r.H_v, tokens);
                f.template value_head<T>(first, head_0 + h, tokens, f.S + h * padded);
            }
        }
        for (long h = 0; h < per_task; h++) write_state(f.S + h * padded, f.s, r.last_state + first_state + h * size);
    });
}

// Backward: every sequence from its last checkpoint to its first, `heads` neighbouring key heads a task, each with its
// group of value heads. Task(r, heads · group, take) has
//     dS                                               [heads · group, panels, dk, PANEL], the states' gradients
//     segment<T>(n, key_head, first, tokens, dS)       the tokens behind one checkpoint; dS of the key head's group
template <class Task, class T> void backward_by_segments(const Rule &r, long heads) {
    if (!r.H_v) return;
    long group = r.H_v / r.H, per_task = heads * group, tasks = r.H / heads;
    gdn::parallel(r.N * tasks, r.threads, [&](int64_t task) {
        Task b = in_scratch<Task>(r, per_task);
        long n = task / tasks, head_0 = task % tasks * heads, begin = r.ends[n], tokens = r.ends[n + 1] - begin;
        long size = r.d_k * r.d_v, padded = b.s.dk * b.s.dv, first_state = (n * r.H_v + head_0 * group) * size;
        for (long h = 0; h < per_task; h++) read_state(r.dlast_state + first_state + h * size, b.s, b.dS + h * padded);
        for (long at = tokens ? (tokens - 1) / r.interval * r.interval : -1; at >= 0; at -= r.interval)
            for (long h = 0; h < heads; h++)
                b.template segment<T>(n, head_0 + h, begin + at, tokens - at < r.interval ? tokens - at : r.interval,
                                      b.dS + h * group * padded);
        for (long h = 0; h < per_task; h++) write_state(b.dS + h * padded, b.s, r.dstate + first_state + h * size);
    });
}

}  // namespace GDN_ISA
