// y = x Wᵀ of few rows, with W as it is, row after row: each thread reads some rows of W, a tile of them at a time, at the
// speed of memory. A number does not depend on the rows of x beside it, nor on the threads.
#include <algorithm>

#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr long SHARE = 1 << 16;  // products for a thread to make
constexpr long BLOCK = 24;       // rows of W that stay in the cache for all rows of x: a multiple of every tile's
#if defined(__AVX512F__)
constexpr int MOST = 8;   // rows of x in a tile
constexpr int SUMS = 24;  // of a tile, all in registers
#else
constexpr int MOST = 4;
constexpr int SUMS = 12;
#endif
constexpr int rows_of_weight(int M) { return std::min(8, SUMS / M); }

// Vectors of numbers of type T, and how they are multiplied: as floats,
template <class T> struct Vectors {
    using Input = float;
    static constexpr long WIDTH = W;
    static INLINE vec load(const T *p) { return GDN_ISA::load(p); }
    static INLINE vec load_first(const T *p, long n) { return First{n}.load(p); }
    static INLINE vec load_input(const float *p) { return GDN_ISA::load(p); }
    static INLINE void add(vec &sum, vec a, vec b) { sum += a * b; }
};
#ifdef __AVX512BF16__
// or two bfloat16 numbers at a time.
template <> struct Vectors<uint16_t> {
    using Input = uint16_t;
    static constexpr long WIDTH = 2 * W;
    static INLINE __m512i load(const uint16_t *p) { return _mm512_loadu_si512(p); }
    static INLINE __m512i load_first(const uint16_t *p, long n) { return _mm512_maskz_loadu_epi16((1u << n) - 1, p); }
    static INLINE __m512i load_input(const uint16_t *p) { return load(p); }
    static INLINE void add(vec &sum, __m512i a, __m512i b) { sum = (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
};
#endif

template <class T> struct FewRowsOf {
    using Of = Vectors<T>;
    using Input = typename Of::Input;
    static constexpr long LINE = 64 / sizeof(T);  // numbers of a cache line
    const LinearFewRows &a;
    long stride;
    Input *x;  // [M, stride], filled up with zeros

    FewRowsOf(const LinearFewRows &a, Take &take)
        : a(a), stride(round_up(a.K, 32) + 32), x((Input *)take(a.M * stride * sizeof(Input) / sizeof(float))) {}

    // M rows of x from m on times N rows of W from n on. Meanwhile the next N come into the second cache.
    template <int M, int N> KERNEL void multiply(long m, long n) const {
        const T *weight = (const T *)a.weight + n * a.K, *next = weight + N * a.K;
        const Input *inputs = x + m * stride;
        vec sums[M][N] = {};
        auto add = [&](long k, auto load) INLINE_LAMBDA {
            decltype(load(weight)) weights[N];
            UNROLL for (int j = 0; j < N; j++) weights[j] = load(weight + j * a.K + k);
            UNROLL for (int i = 0; i < M; i++) {
                auto input = Of::load_input(inputs + i * stride + k);
                UNROLL for (int j = 0; j < N; j++) Of::add(sums[i][j], weights[j], input);
            }
        };
        long k = 0;
        for (; k + LINE <= a.K; k += LINE) {
            UNROLL for (int j = 0; j < N; j++) __builtin_prefetch(next + j * a.K + k, 0, 2);
            UNROLL for (long i = 0; i < LINE; i += Of::WIDTH) add(k + i, [](const T *p) INLINE_LAMBDA { return Of::load(p); });
        }
        for (; k + Of::WIDTH <= a.K; k += Of::WIDTH) add(k, [](const T *p) INLINE_LAMBDA { return Of::load(p); });
        if (long left = a.K - k) add(k, [&](const T *p) INLINE_LAMBDA { return Of::load_first(p, left); });
        UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < N; j++) {
            float y = sum(sums[i][j]);
            if (a.bias) y += widen(((const T *)a.bias)[n + j]);
            narrow(y, (T *)a.y + (m + i) * a.N + n + j);
        }
    }
    template <int M, int N = rows_of_weight(M)> void multiply_weights(long m, long n, long end) const {
        for (; n + N <= end; n += N) multiply<M, N>(m, n);
        if constexpr (N > 1) multiply_weights<M, N / 2>(m, n, end);
    }
    template <int M = MOST> void multiply_rows(long m, long n, long end) const {
        for (; m + M <= a.M; m += M) multiply_weights<M>(m, n, end);
        if constexpr (M > 1) multiply_rows<M - 1>(m, n, end);
    }
    void run(long n, long end) const {
        for (long m = 0; m < a.M; m++) take_row((const T *)a.x + m * a.K, x + m * stride);
        for (; n < end; n += BLOCK) multiply_rows(0, n, std::min(n + BLOCK, end));
    }
    void take_row(const T *from, float *to) const { widen_row(from, to, a.K, stride); }
    void take_row(const T *from, uint16_t *to) const {
        std::copy(from, from + a.K, to);
        std::fill(to + a.K, to + stride, 0);
    }
};

}  // namespace

void linear_few_rows(const LinearFewRows &a) {
    long threads = std::min<long>(a.threads, 1 + a.M * a.N * a.K / SHARE);
    gdn::parallel(threads, threads, [&](int64_t task) {
        long n = a.N * task / threads, end = a.N * (task + 1) / threads;
        a.bfloat16 ? in_scratch<FewRowsOf<uint16_t>>(a).run(n, end) : in_scratch<FewRowsOf<float>>(a).run(n, end);
    });
}

}  // namespace GDN_ISA
