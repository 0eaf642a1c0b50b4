// How weights of a linear map lie in memory, how they become floats, and what becomes of the sums.
//
// A packed weight is a row of panels, each of 32 outputs; a panel is a row of blocks, each of 32 inputs: what a product reads
// is one stream. N and K are filled up with zeros. Within a block inputs go by, 32 outputs at a time:
//   float32   float [32 inputs][32 outputs]
//   bfloat16  words [16][32]: of inputs 2i and 2i + 1 in the lower and the upper half
//   int8      scales, half [32], then words [8][32]: of inputs 4i … 4i + 3, a byte each from the lowest on
//   int4      scales, half [32], then words [4][32]: of inputs 8i … 8i + 7, 8 added: four in the lower halves of the bytes,
//             four in the upper
#pragma once
#include <algorithm>

#include "activation.h"
#include "api.h"
#include "simd.h"
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace GDN_ISA {

constexpr int SIDE = 32;  // of a block
constexpr int VECTORS = SIDE / W;
constexpr int TOGETHER = 8;  // inputs of a block that are read in one go
constexpr long AHEAD = 8192;  // bytes from what few rows read to what is fetched, into the second cache: into the first costs a third

// Half precision to float, whatever is flushed to zero elsewhere.
INLINE float widen_half(uint16_t h) {
    int exponent = h >> 10 & 31;
    float fraction = float(h & 1023), magnitude;
    if (exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    else
        magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return h >> 15 ? -magnitude : magnitude;
}
INLINE vec load_halves(const void *p) {
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)p));  // g++ 12 warns without a mask
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
#else
    uint16_t h[W];
    std::memcpy(h, p, sizeof h);
    vec x;
    for (int i = 0; i < W; i++) x[i] = widen_half(h[i]);
    return x;
#endif
}

// a b + c with one rounding; of the portable kernels on x86-64, which do not use it, with two.
INLINE vec multiply_add(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

typedef uint32_t words_anywhere __attribute__((vector_size(W * 4), aligned(4), may_alias));

// A block to read: at(i, j, n) is of input i + j the n-th vector of outputs; j and n are known to the compiler.
struct Float32Block {
    static constexpr long BYTES = SIDE * SIDE * 4;
    const char *data;
    INLINE explicit Float32Block(const char *p) : data(p) {}
    INLINE vec at(int i, int j, int n) const { return load((const float *)data + (i + j) * SIDE + n * W); }
};

struct BFloat16Block {
    static constexpr long BYTES = SIDE * SIDE * 2;
    const char *data;
    INLINE explicit BFloat16Block(const char *p) : data(p) {}
    INLINE vec at(int i, int j, int n) const {
        bits both = *(const words_anywhere *)(data + 4 * ((i + j) / 2 * SIDE + n * W));
        return (vec)(j % 2 ? both & 0xffff0000 : both << 16);
    }
};

struct Int8Block {
    static constexpr long BYTES = SIDE * 2 + SIDE * SIDE;
    const char *data;
    vec scale[VECTORS];
    INLINE explicit Int8Block(const char *p) : data(p + SIDE * 2) {
        UNROLL for (int n = 0; n < VECTORS; n++) scale[n] = load_halves(p + 2 * n * W);
    }
    INLINE vec at(int i, int j, int n) const {
        bits four = *(const words_anywhere *)(data + 4 * ((i + j) / 4 * SIDE + n * W));
        return __builtin_convertvector((ints)(four << (24 - j % 4 * 8)) >> 24, vec) * scale[n];
    }
};

struct Int4Block {
    static constexpr long BYTES = SIDE * 2 + SIDE * SIDE / 2;
    const char *data;
    vec scale[VECTORS];
    INLINE explicit Int4Block(const char *p) : data(p + SIDE * 2) {
        UNROLL for (int n = 0; n < VECTORS; n++) scale[n] = load_halves(p + 2 * n * W);
    }
    INLINE vec at(int i, int j, int n) const {
        bits eight = *(const words_anywhere *)(data + 4 * (i / 8 * SIDE + n * W));
        return __builtin_convertvector((ints)(eight >> (j % 4 * 8 + j / 4 * 4) & 15) - 8, vec) * scale[n];
    }
};

// B[k, n] of the first k inputs of a panel, from block to block.
template <class Block> INLINE void widen_blocks(const char *blocks, long k, float *B) {
    for (long first = 0; first < k; first += SIDE, blocks += Block::BYTES) {
        Block block(blocks);
        for (int i = 0; i < SIDE; i += TOGETHER, B += TOGETHER * SIDE)
            UNROLL for (int j = 0; j < TOGETHER; j++)
                UNROLL for (int n = 0; n < VECTORS; n++) store(B + j * SIDE + n * W, block.at(i, j, n));
    }
}

// The same of rows as they are: B[k, n] = w[n, k], zero beyond the last row and the last input.
template <class T> INLINE void widen_rows(const T *w, long stride, long rows, long inputs, long k, float *B) {
    float square[W * W];
    for (long n = 0; n < SIDE; n += W)
        for (long i = 0; i < k; i += W) {
            for (long r = 0; r < W; r++)
                if (n + r < rows && i < inputs)
                    widen_row(w + (n + r) * stride + i, square + r * W, std::min<long>(W, inputs - i), W);
                else
                    store(square + r * W, vec{});
            transpose_block(square, W, B + i * SIDE + n, SIDE);
        }
}

// The same of a weight that lies transposed: B[k, n] = w[k, n].
template <class T> INLINE void widen_columns(const T *w, long stride, long columns, long inputs, long k, float *B) {
    for (long i = 0; i < k; i++, B += SIDE)
        if (i < inputs)
            widen_row(w + i * stride, B, std::min<long>(SIDE, columns), SIDE);
        else
            widen_row(w, B, 0, SIDE);
}

// A weight, by panels.
struct Panels {
    const char *data;
    long format, N, K, blocks;  // of a panel

    explicit Panels(const Linear &a) : data((const char *)a.weight), format(a.format), N(a.N), K(a.K), blocks(round_up(a.K, SIDE) / SIDE) {}

    long block_bytes() const {
        switch (format) {
            case FLOAT32: return Float32Block::BYTES;
            case BFLOAT16: return BFloat16Block::BYTES;
            case INT8: return Int8Block::BYTES;
            case INT4: return Int4Block::BYTES;
        }
        return 0;
    }
    long panel_bytes() const { return blocks * block_bytes(); }
    const char *block(long panel, long first) const { return data + panel * panel_bytes() + first / SIDE * block_bytes(); }

    // B[k, 32]: k inputs from `first` on, a multiple of 32. Where they lie, if they are floats already, or in B.
    const float *widened(long panel, long first, long k, float *B) const {
        const char *from = block(panel, first);
        long left = N - panel * SIDE, inputs = K - first, row = panel * SIDE * K + first, column = first * N + panel * SIDE;
        switch (format) {
            case FLOAT32: return (const float *)from;
            case BFLOAT16: widen_blocks<BFloat16Block>(from, k, B); break;
            case INT8: widen_blocks<Int8Block>(from, k, B); break;
            case INT4: widen_blocks<Int4Block>(from, k, B); break;
            case FLOAT32_ROWS: widen_rows((const float *)data + row, K, left, inputs, k, B); break;
            case BFLOAT16_ROWS: widen_rows((const uint16_t *)data + row, K, left, inputs, k, B); break;
            case FLOAT32_COLUMNS: widen_columns((const float *)data + column, N, left, inputs, k, B); break;
            case BFLOAT16_COLUMNS: widen_columns((const uint16_t *)data + column, N, left, inputs, k, B); break;
        }
        return B;
    }
};

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

}  // namespace GDN_ISA
