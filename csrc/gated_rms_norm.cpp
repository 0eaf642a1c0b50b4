// The gated RMS norm and its gradient, row by row: a row is read from memory once.
#include <vector>

#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

template <class T> T *at(const Rows &x, long t, long h) {
    return x.data ? (T *)x.data + t * x.token + h * x.head : nullptr;
}

// About 32768 numbers, in 32 to 256 rows: whole tokens, whatever the threads.
long tokens_per_block(const RmsNorm &a) {
    long rows = a.d > 1024 ? 32 : a.d < 128 ? 256 : 32768 / a.d;
    return a.H && a.H < rows ? rows / a.H : 1;
}
// row(t, h, block) for every row, in parallel.
template <class F> void each_row(const RmsNorm &a, F row) {
    long tokens = tokens_per_block(a);
    gdn::parallel(round_up(a.tokens, tokens) / tokens, a.threads, [&](int64_t block) {
        long last = (block + 1) * tokens < a.tokens ? (block + 1) * tokens : a.tokens;
        for (long t = block * tokens; t < last; t++)
            for (long h = 0; h < a.H; h++) row(t, h, block);
    });
}

// One over the root mean square.
template <class T> INLINE float inverse_rms(const T *x, long d, float eps) {
    vec squares[4] = {};
    long i = 0;
    for (; i + 4 * W <= d; i += 4 * W) UNROLL for (int j = 0; j < 4; j++) {
        vec z = load(x + i + j * W);
        squares[j] += z * z;
    }
    each_vector(d - i, [&](long k, auto part) {
        vec z = part.load(x + i + k);
        squares[0] += z * z;
    });
    return 1 / std::sqrt(sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / d + eps);
}

template <class T> void forward(const RmsNorm &a) {
    each_row(a, [&](long t, long h, long) {
        const T *x = at<T>(a.x, t, h), *gate = at<T>(a.gate, t, h);
        T *y = at<T>(a.y, t, h);
        float r = inverse_rms(x, a.d, a.eps);
        each_vector(a.d, [&](long i, auto part) {
            vec z = part.load(x + i) * r * part.load(a.weight + i);
            part.store(y + i, gate ? z * silu(part.load(gate + i)) : z);
        });
    });
}

// With z = x r and dz = dy · weight · silu(gate): dx = r (dz − z mean(dz z)).
template <class T, bool gated> INLINE void backward_row(const RmsNorm &a, long t, long h, float *dweight, float *dz) {
    const T *x = at<T>(a.x, t, h), *gate = at<T>(a.gate, t, h), *dy = at<T>(a.dy, t, h);
    T *dx = at<T>(a.dx, t, h), *dgate = at<T>(a.dgate, t, h);
    float r = inverse_rms(x, a.d, a.eps);
    vec product = {};
    each_vector(a.d, [&](long i, auto part) {
        vec z = part.load(x + i) * r, w = part.load(a.weight + i), d = part.load(dy + i);
        if (gated) {
            vec g = part.load(gate + i), s = sigmoid(g);
            part.store(dgate + i, d * z * w * silu_slope(g, s));
            d *= g * s;
        }
        part.store(dweight + i, part.load(dweight + i) + d * z);
        part.store(dz + i, d * w);
        product += d * w * z;
    });
    float mean = sum(product) / a.d;
    each_vector(a.d, [&](long i, auto part) {
        part.store(dx + i, (part.load(dz + i) - part.load(x + i) * (r * mean)) * r);
    });
}

template <class T> void backward(const RmsNorm &a) {
    long tokens = tokens_per_block(a), blocks = round_up(a.tokens, tokens) / tokens;
    std::vector<float> dweight(blocks * a.d);
    each_row(a, [&](long t, long h, long block) {
        float *dz = gdn::scratch(a.d);
        if (a.gate.data)
            backward_row<T, true>(a, t, h, dweight.data() + block * a.d, dz);
        else
            backward_row<T, false>(a, t, h, dweight.data() + block * a.d, dz);
    });
    add_rows(dweight.data(), blocks, a.d, a.dweight);
}

}  // namespace

void gated_rms_norm_forward(const RmsNorm &a) { a.bfloat16 ? forward<uint16_t>(a) : forward<float>(a); }
void gated_rms_norm_backward(const RmsNorm &a) { a.bfloat16 ? backward<uint16_t>(a) : backward<float>(a); }

}  // namespace GDN_ISA
