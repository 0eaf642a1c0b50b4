// Products with weights of whole numbers, int8 or int4. Each block of 32 inputs of a row of x is rounded to whole numbers too,
// the largest in size to ±127, so that products are whole numbers and the sum of a block is exact; only the blocks' sums,
// times both scales, are added as floats, from the first block to the last. So no number depends on the rows beside it, the
// threads or the instruction set's way of multiplying.
#pragma once
#include "linear.h"
#include "scratch.h"

namespace GDN_ISA {

constexpr int QUADS = SIDE / 4;              // of inputs in a block: each a word of four bytes
constexpr int WHOLE_ROWS = W == 16 ? 8 : 4;  // of x that are multiplied at once

// How sums of products of four bytes by four are made: `add` to what `begin` gives, and `end` gives sum + offset. In PARTS
// words lie four whole numbers of x. The bytes of weights are −128 … 127, if UNSIGNED 0 … 255, of small ones 0 … 15.
#if defined(__AVX512VNNI__)
struct Sum {
    static constexpr int PARTS = 1;
    static constexpr bool UNSIGNED = true;
    static INLINE void spread(const int8_t *x, int32_t *words) { std::memcpy(words, x, 4); }
    static INLINE ints begin(int32_t offset) { return ints{} + offset; }
    static INLINE ints add(ints sum, ints weights, const int32_t *x) {
        return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(*x));
    }
    static INLINE ints end(ints sum, int32_t) { return sum; }
};
typedef Sum SumOfSmall;
#elif defined(__AVX2__)
#if defined(__AVX512BW__)
typedef short shorts __attribute__((vector_size(64)));
INLINE ints add_pairs(shorts a, shorts b) { return (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
INLINE shorts add_byte_pairs(ints a, ints b) { return (shorts)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
#else
typedef short shorts __attribute__((vector_size(32)));
INLINE ints add_pairs(shorts a, shorts b) { return (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
INLINE shorts add_byte_pairs(ints a, ints b) { return (shorts)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
#endif
// Bytes 0 and 2 of a word become its halves, and so do bytes 1 and 3.
struct Sum {
    static constexpr int PARTS = 2;
    static constexpr bool UNSIGNED = false;
    static INLINE void spread(const int8_t *x, int32_t *words) {
        int16_t halves[4] = {x[0], x[2], x[1], x[3]};
        std::memcpy(words, halves, 8);
    }
    static INLINE ints begin(int32_t) { return ints{}; }
    static INLINE ints add(ints sum, ints weights, const int32_t *x) {
        shorts bytes = (shorts)weights;
        sum += add_pairs(bytes << 8 >> 8, (shorts)(ints{} + x[0]));
        return sum + add_pairs(bytes >> 8, (shorts)(ints{} + x[1]));
    }
    static INLINE ints end(ints sum, int32_t offset) { return sum + offset; }
};
// Sums of 16 products of at most 15 · 127 fit into 16 bits.
struct SumOfSmall {
    static constexpr int PARTS = 1;
    static INLINE void spread(const int8_t *x, int32_t *words) { std::memcpy(words, x, 4); }
    static INLINE ints begin(int32_t) { return ints{}; }
    static INLINE ints add(ints sum, ints weights, const int32_t *x) {
        return (ints)((shorts)sum + add_byte_pairs(weights, ints{} + *x));
    }
    static INLINE ints end(ints sum, int32_t offset) { return add_pairs((shorts)sum, shorts{} + 1) + offset; }
};
#else
struct Sum {
    static constexpr int PARTS = 4;
    static constexpr bool UNSIGNED = false;
    static INLINE void spread(const int8_t *x, int32_t *words) {
        for (int i = 0; i < 4; i++) words[i] = x[i];
    }
    static INLINE ints begin(int32_t offset) { return ints{} + offset; }
    static INLINE ints add(ints sum, ints weights, const int32_t *x) {
        UNROLL for (int i = 0; i < 4; i++) sum += ((ints)((bits)weights << (24 - 8 * i)) >> 24) * x[i];
        return sum;
    }
    static INLINE ints end(ints sum, int32_t) { return sum; }
};
typedef Sum SumOfSmall;
#endif

// Words of weights, of a block's q-th quad of inputs and n-th vector of outputs. ADDED: how much more they are.
struct Int8Words : Sum {
    static constexpr long BYTES = Int8Block::BYTES;
    static constexpr int ADDED = UNSIGNED ? 128 : 0;
    static INLINE ints read(const char *block, int q, int n) {
        bits words = *(const words_anywhere *)(block + SIDE * 2 + 4 * (q * SIDE + n * W));
        return (ints)(UNSIGNED ? words ^ 0x80808080 : words);
    }
};
struct Int4Words : SumOfSmall {
    static constexpr long BYTES = Int4Block::BYTES;
    static constexpr int ADDED = 8;
    static INLINE ints read(const char *block, int q, int n) {
        bits words = *(const words_anywhere *)(block + SIDE * 2 + 4 * (q / 2 * SIDE + n * W));
        return (ints)(words >> q % 2 * 4 & 0x0f0f0f0f);
    }
};

// Some rows of x as whole numbers, and their products.
template <class Words> struct WholeNumbers {
    static constexpr long BLOCK = QUADS * Words::PARTS;  // words
    long K, blocks;
    int32_t *words, *offset;  // [rows, blocks, BLOCK], [rows, blocks]: less what was added to the weights
    float *scale;             // [rows, blocks]

    WholeNumbers(long K, long rows, Take &take) : K(K), blocks(round_up(K, SIDE) / SIDE) {
        words = (int32_t *)take(rows * blocks * BLOCK);
        offset = (int32_t *)take(rows * blocks);
        scale = take(rows * blocks);
    }

    KERNEL void round(const float *x, long row) const {
        for (long b = 0; b < blocks; b++) {
            float block[SIDE];
            int8_t whole[SIDE];
            widen_row(x + b * SIDE, block, std::min<long>(SIDE, K - b * SIDE), SIDE);
            int32_t largest = 0, total = 0;  // of the sizes, as bits: that of NaN is above all others
            for (int i = 0; i < SIDE; i++) {
                int32_t size;
                std::memcpy(&size, block + i, 4);
                largest = std::max(largest, size & 0x7fffffff);
            }
            float step;
            std::memcpy(&step, &largest, 4);
            step /= 127;
            for (int i = 0; i < SIDE; i++) {
                float steps = step > 0 ? block[i] / step : 0;
                int32_t nearest = std::abs(steps) <= 128 ? int32_t(std::nearbyint(steps)) : 0;  // not if it is not finite
                whole[i] = int8_t(nearest), total += nearest;
            }
            long at = row * blocks + b;
            scale[at] = step, offset[at] = -total * Words::ADDED;
            for (int q = 0; q < QUADS; q++) Words::spread(whole + 4 * q, words + at * BLOCK + q * Words::PARTS);
        }
    }

    // M rows times V vectors of outputs of a panel. Of one row the sums are made in two parts: none waits for the other.
    // ahead: bytes of each block that are fetched early; none for one row, which the processor itself runs ahead of.
    template <int M, int V> KERNEL void multiply(long row, const char *panel, int n, long ahead, vec (&result)[M][V]) const {
        constexpr int CHAINS = M == 1 ? 2 : 1;
        vec sum[M][V];
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int v = 0; v < V; v++) sum[m][v] = vec{};
        for (long b = 0; b < blocks; b++, panel += Words::BYTES) {
            for (long byte = 0; byte < ahead; byte += 64) __builtin_prefetch(panel + AHEAD + byte, 0, 2);
            const int32_t *x = words + (row * blocks + b) * BLOCK;
            ints products[CHAINS][M][V];
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int v = 0; v < V; v++)
                    UNROLL for (int c = 0; c < CHAINS; c++)
                        products[c][m][v] = Words::begin(c ? 0 : offset[(row + m) * blocks + b]);
            UNROLL for (int q = 0; q < QUADS; q++) {
                ints weights[V];
                UNROLL for (int v = 0; v < V; v++) weights[v] = Words::read(panel, q, n + v);
                UNROLL for (int m = 0; m < M; m++)
                    UNROLL for (int v = 0; v < V; v++) {
                        ints &of = products[q % CHAINS][m][v];
                        of = Words::add(of, weights[v], x + m * blocks * BLOCK + q * Words::PARTS);
                    }
            }
            vec weight_scale[V];
            UNROLL for (int v = 0; v < V; v++) weight_scale[v] = load_halves(panel + 2 * (n + v) * W);
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int v = 0; v < V; v++) {
                    long at = (row + m) * blocks + b;
                    ints exact = Words::end(products[0][m][v], offset[at]);
                    if (CHAINS == 2) exact += Words::end(products[CHAINS - 1][m][v], 0);
                    vec product = __builtin_convertvector(exact, vec);
                    sum[m][v] = multiply_add(product, weight_scale[v] * scale[at], sum[m][v]);
                }
        }
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int v = 0; v < V; v++) result[m][v] = sum[m][v];
    }
    // `count` rows, as many as a tile takes or fewer, from `row` on; they are those of y from first + row on.
    template <int M = WHOLE_ROWS> void multiply_rows(const Linear &a, long count, long first, long row, long panel) const {
        if (count < M) {
            if constexpr (M > 1) multiply_rows<M - 1>(a, count, first, row, panel);
            return;
        }
        constexpr int V = M == 1 ? std::min(VECTORS, 4) : 2;
        const char *data = (const char *)a.weight + panel * blocks * Words::BYTES;
        for (int n = 0; n < VECTORS; n += V) {
            vec sum[M][V];
            multiply<M, V>(row, data, n, M > 1 && row == 0 && n == 0 ? Words::BYTES : 0, sum);
            for (int m = 0; m < M; m++)
                for (int v = 0; v < V; v++) Output{a, true, true}.put(first + row + m, panel * SIDE + (n + v) * W, sum[m][v]);
        }
    }
    // `rows` rows, which are y's from `first` on, times some panels.
    void multiply_panels(const Linear &a, long rows, long first, long panel, long end) const {
        for (; panel < end; panel++)
            for (long row = 0; row < rows; row += WHOLE_ROWS) multiply_rows(a, rows - row, first, row, panel);
    }
};

}  // namespace GDN_ISA
