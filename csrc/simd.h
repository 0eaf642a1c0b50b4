// Vectors of floats and register tiles, written once with the compiler's vector extensions and compiled once per
// instruction set: GDN_ISA names the namespace, the compiler's own macros tell the width.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define KERNEL __attribute__((noinline))  // a function of its own keeps its tile in registers
#define INLINE_LAMBDA __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

namespace GDN_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;      // floats in a vector
constexpr int TILE_M = 8;  // rows of a register tile
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int TILE_M = 4;
#else
constexpr int W = 4;
constexpr int TILE_M = 4;
#endif
constexpr int TILE_N = 2;          // vectors in a row of a register tile
constexpr int PANEL = TILE_N * W;  // its columns: matrices are stored in panels of so many columns

typedef float vec __attribute__((vector_size(W * 4)));
typedef float vec_anywhere __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(W * 4)));
typedef int32_t ints __attribute__((vector_size(W * 4)));

INLINE vec load(const float *p) { return *(const vec_anywhere *)p; }
INLINE void store(float *p, vec x) { *(vec_anywhere *)p = x; }
INLINE vec broadcast(float x) { return x - vec{}; }
INLINE float sum(vec x) {
    float total = 0;
    UNROLL for (int i = 0; i < W; i++) total += x[i];
    return total;
}

INLINE long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

// bfloat16 is the upper half of a float.
INLINE float widen(float x) { return x; }
INLINE float widen(uint16_t x) {
    uint32_t b = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &b, 4);
    return y;
}
INLINE void narrow(float x, float *y) { *y = x; }
INLINE void narrow(float x, uint16_t *y) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t b;
    std::memcpy(&b, &x, 4);
    *y = x != x ? 0x7fc0 : uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
typedef uint16_t half_anywhere __attribute__((vector_size(W * 2), aligned(2), may_alias));
INLINE vec load(const uint16_t *p) {
    return (vec)(__builtin_convertvector(*(const half_anywhere *)p, bits) << 16);
}
INLINE void store(uint16_t *p, vec x) {
    bits b = (bits)x, rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    *(half_anywhere *)p = __builtin_convertvector(x != x ? bits{} + 0x7fc0 : rounded, half_anywhere);
}
template <class T> INLINE void widen_row(const T *from, float *to, long n, long padded) {
    long i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; i++) to[i] = widen(from[i]);
    for (; i < padded; i++) to[i] = 0;
}
template <class T> INLINE void narrow_row(const float *from, T *to, long n) {
    long i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; i++) narrow(from[i], to + i);
}

// M × N·W numbers in registers.
template <int M, int N> struct Tile {
    vec c[M][N];

    INLINE void zero() {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) c[m][n] = vec{};
    }
    INLINE void load_from(const float *p, long stride) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) c[m][n] = load(p + m * stride + n * W);
    }
    INLINE void store_to(float *p, long stride) const {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) store(p + m * stride + n * W, c[m][n]);
    }
    INLINE void scale(float x) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) c[m][n] *= x;
    }
    INLINE void scale_rows(const float *x) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int n = 0; n < N; n++) c[m][n] *= x[m];
    }
    // c[m] += Σ_k a[m·am + k·ak] b[k·bk …]
    INLINE void add_product(const float *a, long am, long ak, const float *b, long bk, long K) {
        for (long k = 0; k < K; k++) {
            vec row[N];
            UNROLL for (int n = 0; n < N; n++) row[n] = load(b + k * bk + n * W);
            UNROLL for (int m = 0; m < M; m++) {
                vec x = broadcast(a[m * am + k * ak]);
                UNROLL for (int n = 0; n < N; n++) c[m][n] += x * row[n];
            }
        }
    }
    INLINE void subtract_product(const float *a, long am, long ak, const float *b, long bk, long K) {
        for (long k = 0; k < K; k++) {
            vec row[N];
            UNROLL for (int n = 0; n < N; n++) row[n] = load(b + k * bk + n * W);
            UNROLL for (int m = 0; m < M; m++) {
                vec x = broadcast(a[m * am + k * ak]);
                UNROLL for (int n = 0; n < N; n++) c[m][n] -= x * row[n];
            }
        }
    }
};

// Products of bfloat16 numbers, two at a time: a word holds two neighbours along the summed axis.
#ifdef __AVX512BF16__
constexpr bool WORDS = true;
// t.c[m] += Σ_k a[m·am + k·ak] · b[k·bk …], each a product of two pairs
template <int M, int N>
INLINE void add_words(Tile<M, N> &t, const uint32_t *a, long am, long ak, const uint32_t *b, long bk, long K) {
    for (long k = 0; k < K; k++) {
        __m512i row[N];
        UNROLL for (int n = 0; n < N; n++) row[n] = _mm512_loadu_si512(b + k * bk + n * W);
        UNROLL for (int m = 0; m < M; m++) {
            __m512i x = _mm512_set1_epi32(a[m * am + k * ak]);
            UNROLL for (int n = 0; n < N; n++) t.c[m][n] = (vec)_mm512_dpbf16_ps((__m512)t.c[m][n], (__m512bh)x, (__m512bh)row[n]);
        }
    }
}
// Words of neighbours in one row: [n] -> [n / 2], n a multiple of 16.
INLINE void pair_columns(const float *row, uint32_t *words, long n) {
    for (long i = 0; i < n; i += 16) _mm256_storeu_si256((__m256i *)(words + i / 2), (__m256i)_mm512_cvtneps_pbh((__m512)load(row + i)));
}
// Words of two rows: n of them, a multiple of W.
INLINE void pair_rows(const float *even, const float *odd, uint32_t *words, long n) {
    short order[32];
    for (int i = 0; i < 16; i++) order[2 * i] = i, order[2 * i + 1] = 16 + i;
    __m512i interleave = _mm512_loadu_si512(order);
    for (long i = 0; i < n; i += W) {
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)load(odd + i), (__m512)load(even + i));
        _mm512_storeu_si512(words + i, _mm512_permutexvar_epi16(interleave, both));
    }
}
#else
constexpr bool WORDS = false;
template <int M, int N> INLINE void add_words(Tile<M, N> &, const uint32_t *, long, long, const uint32_t *, long, long) {}
INLINE void pair_columns(const float *, uint32_t *, long) {}
INLINE void pair_rows(const float *, const float *, uint32_t *, long) {}
#endif

// a and b, from their numbers `first` on, taken in turns.
template <int first, int... i> INLINE vec interleave(vec a, vec b, std::integer_sequence<int, i...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * W)...);
#else
    return __builtin_shuffle(a, b, ints{(first + i / 2 + i % 2 * W)...});
#endif
}

// One W × W block. Each of log₂ W rounds interleaves the first half of the rows with the second.
INLINE void transpose_block(const float *from, long from_stride, float *to, long to_stride) {
    vec row[W], next[W];
    std::make_integer_sequence<int, W> all;
    UNROLL for (int i = 0; i < W; i++) row[i] = load(from + i * from_stride);
    UNROLL for (int round = 1; round < W; round *= 2) {
        UNROLL for (int i = 0; i < W / 2; i++) {
            next[2 * i] = interleave<0>(row[i], row[i + W / 2], all);
            next[2 * i + 1] = interleave<W / 2>(row[i], row[i + W / 2], all);
        }
        UNROLL for (int i = 0; i < W; i++) row[i] = next[i];
    }
    UNROLL for (int i = 0; i < W; i++) store(to + i * to_stride, row[i]);
}

// [rows, columns] -> [columns, rows], both counts multiples of W.
INLINE void transpose(const float *from, long from_stride, float *to, long to_stride, long rows, long columns) {
    for (long i = 0; i < rows; i += W)
        for (long j = 0; j < columns; j += W) transpose_block(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}

}  // namespace GDN_ISA
