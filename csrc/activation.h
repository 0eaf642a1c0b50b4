// What elementwise kernels share: exp, sigmoid and SiLU on vectors, and walks over rows of any width.
#pragma once
#include "simd.h"

namespace GDN_ISA {

// p · 2ⁿ, n a whole number. Without an instruction for it n is at most some hundreds, in two factors for subnormal results.
INLINE vec times_power(vec p, vec n) {
#ifdef __AVX512F__
    return (vec)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);  // g++ 12 warns of it without a mask
#else
    ints whole = __builtin_convertvector(n, ints), half = whole >> 1;
    return p * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
}
constexpr float SHIFT = 0x1.8p23f;  // adding it rounds what is below 2²² to a whole number, which the low bits then hold

// Within 2 ulp; 0 and infinity at the ends, NaN stays NaN. x = n ln 2 + r.
INLINE vec exp(vec x) {
    const vec most = broadcast(89), least = broadcast(-104);
    x = most < x ? most : x;
    x = least > x ? least : x;
    vec n = x * 1.44269504f + SHIFT - SHIFT;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    return times_power(p, n);
}
// 2ˣ, as exact and cheaper: x = n + r without an error, and n is added to the exponent. 1 at 0, infinity from 128 on; what
// is below the smallest normal number may be 0.
INLINE vec exp2(vec x) {
#ifdef __AVX512F__
    vec r = (vec)_mm512_maskz_reduce_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);  // 0 of ±∞
#else
    const vec most = broadcast(128);
    x = most < x ? most : x;
    vec shifted = x + SHIFT, r = x - (shifted - SHIFT);
#endif
    vec p = 1.535336230e-4f * r + 1.339887457e-3f;
    p = p * r + 9.618437358e-3f;
    p = p * r + 5.550332471e-2f;
    p = p * r + 2.402264791e-1f;
    p = p * r + 6.931472029e-1f;
    p = p * r + 1;
#ifdef __AVX512F__
    return times_power(p, x - r);
#else
    return x < -126 ? vec{} : (vec)((bits)p + ((bits)shifted << 23));
#endif
}
INLINE vec sigmoid(vec x) { return 1 / (1 + exp(-x)); }
INLINE vec silu(vec x) { return x / (1 + exp(-x)); }
INLINE vec silu_slope(vec x, vec sigmoid) { return sigmoid * (1 + x * (1 - sigmoid)); }

// Loads and stores of whole vectors, and of the first n numbers of one: the others are zero, and not touched.
struct Whole {
    template <class T> INLINE vec load(const T *p) const { return GDN_ISA::load(p); }
    template <class T> INLINE void store(T *p, vec x) const { GDN_ISA::store(p, x); }
};
struct First {
    long n;
    template <class T> INLINE vec load(const T *p) const {
        float x[W] = {};
        for (long i = 0; i < n; i++) x[i] = widen(p[i]);
        return GDN_ISA::load(x);
    }
    template <class T> INLINE void store(T *p, vec x) const {
        for (long i = 0; i < n; i++) narrow(x[i], p + i);
    }
};

// f(i, part) for every vector of a row of n numbers: part.load(x + i), part.store(y + i, …).
template <class F> INLINE void each_vector(long n, F f) {
    long i = 0;
    for (; i + W <= n; i += W) f(i, Whole());
    if (i < n) f(i, First{n - i});
}

// total = Σ of `count` rows of n numbers, in one order, so that sums made by blocks do not depend on the threads.
// In groups: the rounding error of a long sum grows with its length.
INLINE void add_rows(const float *rows, long count, long n, float *total) {
    each_vector(n, [&](long i, auto part) {
        vec x = {};
        for (long row = 0; row < count;) {
            vec group = {};
            for (long end = row + 32 < count ? row + 32 : count; row < end; row++) group += part.load(rows + row * n + i);
            x += group;
        }
        part.store(total + i, x);
    });
}

}  // namespace GDN_ISA
