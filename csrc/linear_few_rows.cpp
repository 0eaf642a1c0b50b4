// y = x Wᵀ of few rows, with W as it is, row after row: each thread reads a stream of rows, at the speed of memory. A number
// does not depend on the rows of x beside it, nor on the threads.
#include <algorithm>

#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr int CHAINS = 4;          // sums of a number, of which none waits for another
constexpr long STEP = CHAINS * W;  // inputs that are read in one go
constexpr long AHEAD = 2048;       // bytes from what is read to what is fetched
constexpr long SHARE = 1 << 16;    // products for a thread to make
constexpr int MOST = 4;            // rows at once

template <class T> struct FewRowsOf {
    const LinearFewRows &a;
    long stride;
    float *x;  // [M, stride], filled up with zeros

    FewRowsOf(const LinearFewRows &a, Take &take) : a(a), stride(round_up(a.K, STEP)), x(take(a.M * stride)) {}

    // Outputs from n to end, of M rows from `first` on.
    template <int M> KERNEL void multiply(long first, long n, long end) const {
        const float *inputs = x + first * stride;
        for (; n < end; n++) {
            const T *w = (const T *)a.weight + n * a.K;
            vec sums[CHAINS][M] = {};
            auto add = [&](long k, int c, vec weights) INLINE_LAMBDA {
                UNROLL for (int m = 0; m < M; m++) sums[c][m] += weights * load(inputs + m * stride + k + c * W);
            };
            long k = 0;
            for (; k + STEP <= a.K; k += STEP) {
                const char *ahead = (const char *)(w + k) + AHEAD;
                for (unsigned byte = 0; byte < STEP * sizeof(T); byte += 64) __builtin_prefetch(ahead + byte);
                UNROLL for (int c = 0; c < CHAINS; c++) add(k, c, load(w + k + c * W));
            }
            for (int c = 0; k + c * W < a.K; c++) {
                long left = a.K - k - c * W;
                add(k, c, left < W ? First{left}.load(w + k + c * W) : load(w + k + c * W));
            }
            UNROLL for (int m = 0; m < M; m++) {
                float y = sum((sums[0][m] + sums[1][m]) + (sums[2][m] + sums[3][m]));
                if (a.bias) y += widen(((const T *)a.bias)[n]);
                narrow(y, (T *)a.y + (first + m) * a.N + n);
            }
        }
    }
    template <int M = MOST> void multiply_rows(long first, long n, long end) const {
        for (; first + M <= a.M; first += M) multiply<M>(first, n, end);
        if constexpr (M > 1) multiply_rows<M - 1>(first, n, end);
    }
    void run(long n, long end) const {
        for (long m = 0; m < a.M; m++) widen_row((const T *)a.x + m * a.K, x + m * stride, a.K, stride);
        multiply_rows(0, n, end);
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
