// y = x Wᵀ. Each number is summed in one order, whatever the rows beside it, the threads and the path: over the inputs of a
// group one after another, and then over the groups; of whole numbers as linear_whole_numbers.h tells. Few rows are multiplied
// as their weights are read; more rows by a register tile, with weights widened in the cache.
#include "linear_whole_numbers.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr long GROUP = 256;      // inputs: their weights for a panel, and some rows of x, are in the cache
constexpr long MOST_ROWS = 240;  // of a task: x of a group is in the second cache. A multiple of every tile's rows
constexpr long WIDTH = 8;        // panels of a task with many rows, at most
constexpr long SHARE = 1 << 16;  // products for a thread to make; for fewer, starting it costs more
constexpr long SHARES = 4;       // ranges of panels for each thread, at least, of many rows
#if defined(__AVX512F__)
constexpr int ROWS = 8;  // of a tile
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 4;
#endif
constexpr long FEW = 4 * ROWS;  // rows that are multiplied as their weights are read

long panels_of(const Linear &a) { return round_up(a.N, SIDE) / SIDE; }

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

// Brings what is read next into the cache, a part at a time.
struct Fetch {
    const char *data, *end;
    long part;

    Fetch(const char *data, long bytes, long parts) : data(data), end(data + bytes), part(round_up(bytes / std::max(parts, 1L), 64)) {}

    INLINE void some() {
        const char *until = std::min(data + part, end);
        for (; data < until; data += 64) __builtin_prefetch(data);
    }
};

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
                Fetch next(weight.block(p + 1, first), p + 1 < last_panel ? k / SIDE * weight.block_bytes() : 0, (end - row) / ROWS);
                for (long m = row; m < end; m += ROWS) {
                    next.some();
                    multiply_rows(std::min<long>(ROWS, end - m), A + (m - row) * GROUP, weights, k, to, m, p * SIDE);
                }
            }
        }
    }
};

// Few rows, times panels whose weights are read once and never stored as floats.
struct FewRows {
    long M, K, stride;
    float *x;  // [M, stride], filled up with zeros; rows do not begin at the same place of the cache

    FewRows(long M, long K, Take &take) : M(M), K(K), stride(round_up(K, SIDE) + 16), x(take(M * stride)) {}

    void fill(const float *from) const {
        for (long m = 0; m < M; m++) widen_row(from + m * K, x + m * stride, K, round_up(K, SIDE));
    }

    // M rows from `row` on times a group of a panel, as its blocks are read, `COUNT` vectors of outputs at a time.
    template <class Block, int M> KERNEL void multiply(const Linear &a, const char *data, long panel, long first, long row) const {
        constexpr int COUNT = M == 1 ? VECTORS : TILE_N;
        Output to{a, first == 0, first + GROUP >= K};
        long k = std::min(GROUP, K - first);
        for (int n = 0; n < VECTORS; n += COUNT) {
            Tile<M, COUNT> sum;
            sum.zero();
            for (long i = 0; i < k; i += SIDE) {
                Block block(data + i / SIDE * Block::BYTES);
                if (M > 1 && n == 0 && row == 0)  // the processor itself runs ahead of one row
                    for (long byte = 0; byte < Block::BYTES; byte += 64) __builtin_prefetch(block.data + AHEAD + byte, 0, 2);
                add_block(sum, x + row * stride + first + i, block, n);
            }
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int v = 0; v < COUNT; v++) to.put(row + m, panel * SIDE + (n + v) * W, sum.c[m][v]);
        }
    }
    template <class Block, int M, int COUNT>
    INLINE void add_block(Tile<M, COUNT> &sum, const float *x, const Block &block, int n) const {
        for (int i = 0; i < SIDE; i += TOGETHER)
            UNROLL for (int j = 0; j < TOGETHER; j++) {
                vec weights[COUNT];
                UNROLL for (int v = 0; v < COUNT; v++) weights[v] = block.at(i, j, n + v);
                UNROLL for (int m = 0; m < M; m++) {
                    vec input = broadcast(x[m * stride + i + j]);
                    UNROLL for (int v = 0; v < COUNT; v++) sum.c[m][v] += input * weights[v];
                }
            }
    }
    template <class Block, int rows = ROWS>
    INLINE void multiply_rows(const Linear &a, const char *data, long panel, long first, long row) const {
        if (M - row >= rows)
            multiply<Block, rows>(a, data, panel, first, row);
        else if constexpr (rows > 1)
            multiply_rows<Block, rows - 1>(a, data, panel, first, row);
    }
    template <class Block> void multiply_panels(const Linear &a, long panel, long end) const {
        for (; panel < end; panel++)
            for (long first = 0; first < K; first += GROUP)
                for (long row = 0; row < M; row += ROWS)
                    multiply_rows<Block>(a, Panels(a).block(panel, first), panel, first, row);
    }
};

// f(part) for all products that are made together.
template <class F> void each_part(const Linear &a, F f) {
    for (const Linear *part = &a; part; part = part->next) f(*part);
}

// Few rows of x as products with each format read them. The panels of all weights are one row of panels, of which each thread
// takes a part: it starts and waits once, and reads long streams.
struct Together {
    const Linear &a;  // the first
    FewRows floats;
    WholeNumbers<Int8Words> int8;
    WholeNumbers<Int4Words> int4;

    Together(const Linear &a, Take &take)
        : a(a), floats(std::max(rows_for(FLOAT32), rows_for(BFLOAT16)), a.K, take), int8(a.K, rows_for(INT8), take),
          int4(a.K, rows_for(INT4), take) {}

    // M if any weight has this format.
    long rows_for(long format) const {
        long rows = 0;
        each_part(a, [&](const Linear &part) { rows = part.format == format ? a.M : rows; });
        return rows;
    }
    void multiply(const Linear &part, long panel, long end) const {
        switch (part.format) {
            case FLOAT32: return floats.multiply_panels<Float32Block>(part, panel, end);
            case BFLOAT16: return floats.multiply_panels<BFloat16Block>(part, panel, end);
            case INT8: return int8.multiply_panels(part, a.M, 0, panel, end);
            case INT4: return int4.multiply_panels(part, a.M, 0, panel, end);
        }
    }
    void run() const {
        floats.fill(a.x);
        for (long m = 0; m < rows_for(INT8); m++) int8.round(a.x + m * a.K, m);
        for (long m = 0; m < rows_for(INT4); m++) int4.round(a.x + m * a.K, m);
        long all = 0, products = 0;
        each_part(a, [&](const Linear &part) {
            all += panels_of(part) * Panels(part).panel_bytes();
            products += a.M * part.N * a.K;
        });
        long threads = std::min<long>(a.threads, 1 + products / SHARE);
        gdn::parallel(threads, threads, [&](int64_t task) {
            long begin = all * task / threads, end = all * (task + 1) / threads, before = 0;  // bytes
            each_part(a, [&](const Linear &part) {
                long each = Panels(part).panel_bytes(), panels = panels_of(part);
                auto panel_at = [&](long byte) { return std::clamp<long>((byte - before + each / 2) / each, 0, panels); };
                multiply(part, panel_at(begin), panel_at(end));
                before += each * panels;
            });
        });
    }
};

// f(first, last) for ranges of n panels, at most WIDTH each, some for every thread: the last ones end at about the same time.
template <class F> void each_range(long n, long threads, F f) {
    long each = std::clamp<long>(n / (SHARES * threads), 1, WIDTH);
    gdn::parallel((n + each - 1) / each, threads, [&](int64_t i) { f(i * each, std::min(n, (i + 1) * each)); });
}

// Many rows, some at a time. First each row is rounded, by any thread.
template <class Words> void multiply_whole(const Linear &a, long threads, long rows) {
    auto x = in_scratch<WholeNumbers<Words>>(long(a.K), rows);  // this thread's; the others read it
    for (long first = 0; first < a.M; first += rows) {
        long count = std::min(rows, a.M - first);
        gdn::parallel(count, threads, [&](int64_t row) { x.round(a.x + (first + row) * a.K, row); });
        each_range(panels_of(a), threads, [&](long panel, long end) { x.multiply_panels(a, count, first, panel, end); });
    }
}

// One product, whatever the rows.
void multiply_many(const Linear &a) {
    if (!a.M || !a.N) return;
    long threads = std::min<long>(a.threads, 1 + a.M * a.N * a.K / SHARE);
    long parts = (a.M + MOST_ROWS - 1) / MOST_ROWS, rows = round_up((a.M + parts - 1) / parts, ROWS);
    if (a.format == INT8) return multiply_whole<Int8Words>(a, threads, rows);
    if (a.format == INT4) return multiply_whole<Int4Words>(a, threads, rows);
    for (long row = 0; row < a.M; row += rows)
        each_range(panels_of(a), threads, [&](long panel, long end) {
            in_scratch<Product>(a, rows).run(row, std::min(row + rows, long(a.M)), panel, end);
        });
}

}  // namespace

void linear(const Linear &a) {
    if (a.M && a.M <= FEW && a.K && a.format >= FLOAT32) return in_scratch<Together>(a).run();
    each_part(a, multiply_many);
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
