// y = x Wᵀ. Each number is summed in one order, whatever the rows beside it, the threads and the path: over the inputs of a
// group one after another, and then over the groups. One row is multiplied as its weights are read; more rows by a register
// tile, with weights widened in the cache.
#include "activation.h"
#include "linear.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr long GROUP = 256;      // inputs: their weights for a panel, and some rows of x, are in the cache
constexpr long MOST_ROWS = 240;  // of a task: x of a group is in the second cache. A multiple of every tile's rows
constexpr long WIDTH = 8;        // panels of a task with many rows, at most
constexpr long AHEAD = 2048;     // bytes from what is read to what is fetched
constexpr long SHARE = 1 << 16;  // products for a thread to make; for fewer, starting it costs more
constexpr long SHARES = 4;       // of a thread: the last ones to end do so at about the same time
#if defined(__AVX512F__)
constexpr int ROWS = 8;  // of a tile
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 4;
#endif

// What becomes of the sums of a group: y at its first, added to y at others; bias and `added` come with the last.
struct Output {
    const Linear &a;
    bool first, last;

    INLINE void put(long row, long column, vec sum) const {
        if (column + W <= a.N)
            write(row, column, sum, Whole());
        else if (column < a.N)
            write(row, column, sum, First{a.N - column});
    }
    template <class Part> INLINE void write(long row, long column, vec sum, Part part) const {
        float *y = a.y + row * a.N + column;
        if (!first) sum = part.load(y) + sum;
        if (last && a.bias) sum += part.load(a.bias + column);
        if (last && a.added) sum += part.load(a.added + row * a.N + column);
        part.store(y, sum);
    }
};

// M rows of x, [M, GROUP], times a group of a panel, [k, SIDE].
template <int M> KERNEL void multiply(const float *A, const float *B, long k, const Output &to, long row, long column) {
    for (long n = 0; n < SIDE; n += PANEL) {
        Tile<M, TILE_N> tile;
        tile.zero();
        tile.add_product(A, GROUP, 1, B + n, SIDE, k);
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int i = 0; i < TILE_N; i++) to.put(row + m, column + n + i * W, tile.c[m][i]);
    }
}
template <int M = ROWS> INLINE void multiply_rows(long rows, const float *A, const float *B, long k, const Output &to, long row, long column) {
    if (rows == M)
        multiply<M>(A, B, k, to, row, column);
    else if constexpr (M > 1)
        multiply_rows<M - 1>(rows, A, B, k, to, row, column);
}

// Some rows times some panels.
struct Product {
    const Linear &a;
    Panels weight;
    float *A, *B;  // [rows, GROUP], [GROUP, SIDE]

    Product(const Linear &a, long rows, Take &take) : a(a), weight(a), A(take(rows * GROUP)), B(take(GROUP * SIDE)) {}

    void run(long row, long end, long panel, long last_panel) {
        for (long first = 0; first == 0 || first < a.K; first += GROUP) {
            long inputs = std::min(GROUP, a.K - first), k = round_up(inputs, SIDE);
            for (long m = row; m < end; m++) widen_row(a.x + m * a.K + first, A + (m - row) * GROUP, inputs, k);
            Output to{a, first == 0, first + GROUP >= a.K};
            for (long p = panel; p < last_panel; p++) {
                const float *weights = k ? weight.widened(p, first, k, B) : B;
                for (long m = row; m < end; m += ROWS)
                    multiply_rows(std::min<long>(ROWS, end - m), A + (m - row) * GROUP, weights, k, to, m, p * SIDE);
            }
        }
    }
};

// M rows times `count` vectors of outputs of each panel, as their blocks are read.
template <int M, int count, int panels, class Block>
INLINE void add_blocks(Tile<M, count> (&sum)[panels], const float *x, long stride, const Block (&blocks)[panels], int n) {
    for (int i = 0; i < SIDE; i += TOGETHER)
        UNROLL for (int j = 0; j < TOGETHER; j++)
            UNROLL for (int p = 0; p < panels; p++) {
                vec w[count];
                UNROLL for (int v = 0; v < count; v++) w[v] = blocks[p].at(i, j, n + v);
                UNROLL for (int m = 0; m < M; m++) {
                    vec input = broadcast(x[m * stride + i + j]);
                    UNROLL for (int v = 0; v < count; v++) sum[p].c[m][v] += input * w[v];
                }
            }
}

// Few rows, whose weights are read once and never stored as floats.
struct FewRows {
    const Linear &a;
    Panels weight;
    long stride;
    float *x;  // [M, stride], filled up with zeros; rows do not begin at the same place of the cache

    FewRows(const Linear &a, Take &take) : a(a), weight(a), stride(round_up(a.K, SIDE) + 16), x(take(a.M * stride)) {}

    // M rows, `panels` at once, so that no sum waits for itself.
    template <class Block, int M, int panels> KERNEL void multiply(long panel) {
        constexpr int COUNT = M == 1 ? VECTORS : TILE_N;
        const char *data[panels];
        for (int p = 0; p < panels; p++) data[p] = weight.block(panel + p, 0);
        for (long first = 0; first < a.K; first += GROUP) {
            Output to{a, first == 0, first + GROUP >= a.K};
            long k = std::min(GROUP, a.K - first);
            for (int n = 0; n < VECTORS; n += COUNT) {
                Tile<M, COUNT> sum[panels];
                UNROLL for (int p = 0; p < panels; p++) sum[p].zero();
                for (long i = 0; i < k; i += SIDE) {
                    Block blocks[panels];
                    UNROLL for (int p = 0; p < panels; p++) {
                        const char *block = data[p] + i / SIDE * Block::BYTES;
                        if (n == 0)
                            for (long byte = 0; byte < Block::BYTES; byte += 64) __builtin_prefetch(block + AHEAD + byte);
                        blocks[p] = Block(block);
                    }
                    add_blocks(sum, x + first + i, stride, blocks, n);
                }
                UNROLL for (int p = 0; p < panels; p++)
                    UNROLL for (int m = 0; m < M; m++)
                        UNROLL for (int v = 0; v < COUNT; v++) to.put(m, (panel + p) * SIDE + (n + v) * W, sum[p].c[m][v]);
            }
            for (int p = 0; p < panels; p++) data[p] += GROUP / SIDE * Block::BYTES;
        }
    }
    template <class Block, int M = ROWS> void run_rows(long panel, long last_panel) {
        if (a.M < M) {
            if constexpr (M > 1) run_rows<Block, M - 1>(panel, last_panel);
            return;
        }
        constexpr int TOGETHER = W > 4 && M == 1 ? 2 : 1;
        for (; panel + TOGETHER <= last_panel; panel += TOGETHER) multiply<Block, M, TOGETHER>(panel);
        for (; panel < last_panel; panel++) multiply<Block, M, 1>(panel);
    }
    void run(long panel, long last_panel) {
        for (long m = 0; m < a.M; m++) widen_row(a.x + m * a.K, x + m * stride, a.K, round_up(a.K, SIDE));
        switch (a.format) {
            case FLOAT32: return run_rows<Float32Block>(panel, last_panel);
            case BFLOAT16: return run_rows<BFloat16Block>(panel, last_panel);
            case INT8: return run_rows<Int8Block>(panel, last_panel);
            case INT4: return run_rows<Int4Block>(panel, last_panel);
        }
    }
};

// f(first, last) for ranges of n things, at most `most` each, some for every thread.
template <class F> void each_range(long n, long most, long threads, F f) {
    long each = std::max<long>(1, std::min(most, n / (SHARES * threads)));
    gdn::parallel((n + each - 1) / each, threads, [&](int64_t i) { f(i * each, std::min(n, (i + 1) * each)); });
}

}  // namespace

void linear(const Linear &a) {
    if (!a.M || !a.N) return;
    long panels = round_up(a.N, SIDE) / SIDE;
    long threads = std::min<long>(a.threads, 1 + a.M * a.N * a.K / SHARE);
    if (a.M <= ROWS && a.K && a.format >= FLOAT32)
        return each_range(panels, panels, threads, [&](long panel, long end) { in_scratch<FewRows>(a).run(panel, end); });
    long parts = (a.M + MOST_ROWS - 1) / MOST_ROWS, rows = round_up((a.M + parts - 1) / parts, ROWS);
    long width = a.M <= ROWS ? panels : WIDTH;
    for (long row = 0; row < a.M; row += rows)
        each_range(panels, width, threads, [&](long panel, long end) {
            in_scratch<Product>(a, rows).run(row, std::min(row + rows, long(a.M)), panel, end);
        });
}

// A panel is widened and then turned, which is quick; single rows of it are picked out.
void linear_unpack(const Linear &a) {
    Panels weight(a);
    gdn::parallel(a.rows ? a.M : round_up(a.M, SIDE) / SIDE, a.threads, [&](int64_t task) {
        float *B = gdn::scratch(GROUP * SIDE);
        long row = a.rows ? task : task * SIDE, from = a.rows ? a.rows[task] : row;
        long count = a.rows ? 1 : std::min<long>(SIDE, a.M - row);
        for (long first = 0; first < a.K; first += GROUP) {
            long inputs = std::min(GROUP, a.K - first);
            const float *widened = weight.widened(from / SIDE, first, round_up(inputs, SIDE), B);
            for (long r = 0; r < count; r++) {
                float *y = a.y + (row + r) * a.K + first;
                const float *column = widened + (from + r) % SIDE;
                for (long k = 0; k < inputs; k++) y[k] = column[k * SIDE];
            }
        }
    });
}

}  // namespace GDN_ISA
