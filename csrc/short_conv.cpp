// The short convolution and its gradient: sums of shifted rows, for some channels of a block of tokens at a time.
#include <algorithm>
#include <vector>

#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr int GROUP = 4;                       // tokens at once: they share the loads of the taps
constexpr long TOKENS = 128, CHANNELS = 2048;  // of a task, whatever the threads. Long rows, or memory waits

// y[j] += Σ_i taps[i] rows[i + j]
template <int M, class T, class Part>
INLINE void add_products(vec *y, const T *const *rows, const float *taps, long stride, long K, long c, Part part) {
    for (long i = 0; i < K; i++) {
        vec tap = part.load(taps + i * stride + c);
        UNROLL for (int j = 0; j < M; j++) y[j] += tap * part.load(rows[i + j] + c);
    }
}

template <class T> struct Task {
    const ShortConv &a;
    long K, D, channel, width;
    const float *taps, *bias;
    std::vector<const T *> inputs;
    std::vector<const float *> later;
    long n = 0, start = 0, end = 0;  // the sequence at hand
    // Backward: dz, the gradient before the activation, of the last few tokens; zeros; sums for dtaps and dbias.
    float *ring = nullptr, *zeros = nullptr, *sums = nullptr;

    Task(const ShortConv &a, long channel)
        : a(a), K(a.K), D(a.D), channel(channel), width(std::min(CHANNELS, D - channel)), taps(a.taps + channel),
          bias(a.bias ? a.bias + channel : nullptr), inputs(GROUP + K - 1), later(GROUP + K - 1) {}

    T *row(const Rows &x, long t) const { return (T *)x.data + t * x.token + channel; }
    T *state_row(const void *state, long j) const { return (T *)state + (n * (K - 1) + j) * D + channel; }

    // f(first, last) for the tokens of each sequence between two tokens.
    template <class F> void each_sequence(long first, long last, F f) {
        n = std::upper_bound(a.ends, a.ends + a.N, first) - a.ends - 1;
        for (; n < a.N && a.ends[n] < last; n++) {
            start = a.ends[n], end = a.ends[n + 1];
            if (start < end) f(std::max(first, start), std::min(last, end));
        }
    }

    // The rows tokens t … see: those before the first are in the state.
    void look_back(long t, long tokens) {
        for (long i = 0; i < tokens + K - 1; i++) {
            long s = t - K + 1 + i;
            inputs[i] = s >= start ? row(a.x, s) : state_row(a.state, s - start + K - 1);
        }
    }

    template <int M> void output(long t) {
        look_back(t, M);
        each_vector(width, [&](long c, auto part) {
            vec y[M];
            UNROLL for (int j = 0; j < M; j++) y[j] = bias ? part.load(bias + c) : vec{};
            add_products<M>(y, inputs.data(), taps, D, K, c, part);
            UNROLL for (int j = 0; j < M; j++) part.store(row(a.y, t + j) + c, a.silu ? silu(y[j]) : y[j]);
        });
    }

    void forward(long first, long last) {
        each_sequence(first, last, [&](long t, long stop) {
            for (; t + GROUP <= stop; t += GROUP) output<GROUP>(t);
            for (; t < stop; t++) output<1>(t);
        });
    }

    float *dz(long t) const { return ring + t % (GROUP + K - 1) * CHANNELS; }

    // dz of tokens t …, and what they add to the sums.
    template <int M, bool summed> void gradient(long t) {
        look_back(t, M);
        each_vector(width, [&](long c, auto part) {
            vec y[M], d[M];
            UNROLL for (int j = 0; j < M; j++) d[j] = part.load(row(a.dy, t + j) + c);
            if (a.silu) {
                UNROLL for (int j = 0; j < M; j++) y[j] = bias ? part.load(bias + c) : vec{};
                add_products<M>(y, inputs.data(), taps, D, K, c, part);
                UNROLL for (int j = 0; j < M; j++) d[j] *= silu_slope(y[j], sigmoid(y[j]));
            }
            UNROLL for (int j = 0; j < M; j++) part.store(dz(t + j) + c, d[j]);
            if (!summed) return;
            for (long i = 0; i < K; i++) {
                vec total = part.load(sums + i * D + c);
                UNROLL for (int j = 0; j < M; j++) total += d[j] * part.load(inputs[i + j] + c);
                part.store(sums + i * D + c, total);
            }
            vec total = part.load(sums + K * D + c);
            UNROLL for (int j = 0; j < M; j++) total += d[j];
            part.store(sums + K * D + c, total);
        });
    }

    // dx of tokens t …, or dstate before the first: from dz of the token and the K − 1 after it, and from dlast_state.
    template <int M> void spread(long t) {
        const T *last[M];
        T *to[M];
        for (long i = 0; i < M + K - 1; i++) later[i] = t + i >= start && t + i < end ? dz(t + i) : zeros;
        for (long j = 0; j < M; j++) {
            long kept = t + j - (end - (K - 1));
            last[j] = kept >= 0 ? state_row(a.dlast_state, kept) : (const T *)zeros;
            to[j] = t + j >= start ? row(a.dx, t + j) : state_row(a.dstate, t + j - start + K - 1);
        }
        each_vector(width, [&](long c, auto part) {
            vec x[M];
            UNROLL for (int j = 0; j < M; j++) x[j] = part.load(last[j] + c);
            add_products<M>(x, later.data(), taps + (K - 1) * D, -D, K, c, part);
            UNROLL for (int j = 0; j < M; j++) part.store(to[j] + c, x[j]);
        });
    }

    void backward(long first, long last, float *partial) {
        sums = partial + channel;
        ring = gdn::scratch((GROUP + K) * CHANNELS), zeros = ring + (GROUP + K - 1) * CHANNELS;
        std::fill(zeros, zeros + CHANNELS, 0.0f);
        each_sequence(first, last, [&](long stop, long t) {
            for (long s = t; s < std::min(t + K - 1, end); s++) gradient<1, false>(s);  // the next block's first tokens
            for (; t - GROUP >= stop; spread<GROUP>(t)) gradient<GROUP, true>(t -= GROUP);
            for (; t > stop; spread<1>(t)) gradient<1, true>(--t);
            if (stop == start)
                for (long j = 1; j < K; j++) spread<1>(start - j);
        });
    }
};

// run(task, first, last, block) for all channels and tokens, in parallel.
template <class T, class F> void each_task(const ShortConv &a, F run) {
    long tokens = a.ends[a.N], across = round_up(a.D, CHANNELS) / CHANNELS;
    gdn::parallel(round_up(tokens, TOKENS) / TOKENS * across, a.threads, [&](int64_t i) {
        long block = i / across;
        Task<T> task(a, i % across * CHANNELS);
        run(task, block * TOKENS, std::min((block + 1) * TOKENS, tokens), block);
    });
}

template <class T> void forward(const ShortConv &a) {
    each_task<T>(a, [](Task<T> &task, long first, long last, long) { task.forward(first, last); });
    const T *x = (const T *)a.x.data, *state = (const T *)a.state;
    T *last = (T *)a.last_state;
    for (long n = 0, past = a.K - 1; n < a.N; n++)
        for (long j = 0; j < past; j++, last += a.D) {
            long t = a.ends[n + 1] - a.ends[n] - past + j;  // in the sequence
            const T *from = t >= 0 ? x + (a.ends[n] + t) * a.x.token : state + (n * past + past + t) * a.D;
            std::copy(from, from + a.D, last);
        }
}

template <class T> void backward(const ShortConv &a) {
    long blocks = round_up(a.ends[a.N], TOKENS) / TOKENS, size = (a.K + 1) * a.D, kept = (a.K - 1) * a.D;
    std::vector<float> partial(blocks * size);
    each_task<T>(a, [&](Task<T> &task, long first, long last, long block) {
        task.backward(first, last, &partial[block * size]);
    });
    add_rows(partial.data(), blocks, size, a.dtaps);
    const T *dlast = (const T *)a.dlast_state;
    for (long n = 0; n < a.N; n++)
        if (a.ends[n] == a.ends[n + 1]) std::copy(dlast + n * kept, dlast + (n + 1) * kept, (T *)a.dstate + n * kept);
}

}  // namespace

void short_conv_forward(const ShortConv &a) { a.bfloat16 ? forward<uint16_t>(a) : forward<float>(a); }
void short_conv_backward(const ShortConv &a) { a.bfloat16 ? backward<uint16_t>(a) : backward<float>(a); }

}  // namespace GDN_ISA
