// Mamba's selective scan, forward and backward: vectors over channels, so that nothing is summed across a vector but
// the gradients of B and C. A task has a range of channels of one sequence, and its states stay in the cache.
#include "activation.h"
#include "api.h"
#include "gated_delta_rule.h"  // Take
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr long SEGMENT = 64;  // tokens whose states backward holds at once

template <class T> struct Task {
    const Scan &s;
    long sequence, part, d0, vectors, first, tokens;
    float *A, *h, *B, *C;  // [vectors, n, W] and [n]

    Task(const Scan &s, int64_t task, Take &take)
        : s(s), sequence(task / s.parts), part(task % s.parts), d0(part * s.channels),
          vectors(((s.D - d0 < s.channels ? s.D - d0 : s.channels) + W - 1) / W), first(s.ends[sequence]),
          tokens(s.ends[sequence + 1] - first), A(take(vectors * s.n * W)), h(take(vectors * s.n * W)), B(take(s.n)),
          C(take(s.n)) {}

    long size() const { return vectors * s.n * W; }
    First lanes(long v) const { return First{s.D - d0 - v * W < W ? s.D - d0 - v * W : W}; }

    // [D, n] as [vectors, n, W]; channels behind the last are zero. And back.
    void spread(const float *from, float *to) const {
        for (long v = 0; v < vectors; v++)
            for (long j = 0; j < s.n; j++)
                for (long i = 0; i < W; i++)
                    to[(v * s.n + j) * W + i] = i < lanes(v).n ? from[(d0 + v * W + i) * s.n + j] : 0;
    }
    void gather(const float *from, float *to) const {
        for (long v = 0; v < vectors; v++)
            for (long j = 0; j < s.n; j++)
                for (long i = 0; i < lanes(v).n; i++) to[(d0 + v * W + i) * s.n + j] = from[(v * s.n + j) * W + i];
    }
    template <class U> U *row(const Rows &x, long t) const { return (U *)x.data + (first + t) * x.token; }
    template <class U> INLINE vec channels(const Rows &x, long t, long v) const {
        const U *p = row<U>(x, t) + d0 + v * W;
        return lanes(v).n == W ? load(p) : lanes(v).load(p);
    }
    template <class U> INLINE void put(const Rows &x, long t, long v, vec value) const {
        U *p = row<U>(x, t) + d0 + v * W;
        if (lanes(v).n == W) store(p, value);
        else lanes(v).store(p, value);
    }

    // h_t from h_{t−1}; y_t too, where it is wanted.
    void step(long t, const float *before, float *after, bool output) {
        widen_row(row<T>(s.B, t), B, s.n, s.n);
        widen_row(row<T>(s.C, t), C, s.n, s.n);
        for (long v = 0; v < vectors; v++) {
            vec dt = channels<float>(s.dt, t, v), dtx = dt * channels<T>(s.x, t, v), y = {};
            for (long j = 0; j < s.n; j++) {
                long at = (v * s.n + j) * W;
                vec h = exp(dt * load(A + at)) * load(before + at) + dtx * B[j];
                store(after + at, h);
                y += C[j] * h;
            }
            if (output) put<T>(s.y, t, v, y);
        }
    }

    void forward() {
        spread(s.A, A);
        spread(s.state + sequence * s.D * s.n, h);
        for (long t = 0; t < tokens; t++) step(t, h, h, true);
        gather(h, s.last_state + sequence * s.D * s.n);
    }

    // One token in reverse: dh is the gradient of h_t, and becomes that of h_{t−1}.
    void reverse(long t, const float *before, const float *after, float *dh, float *dA) {
        widen_row(row<T>(s.B, t), B, s.n, s.n);
        widen_row(row<T>(s.C, t), C, s.n, s.n);
        float *dB = s.dBC + (part * s.ends[s.N] + first + t) * 2 * s.n, *dC = dB + s.n;
        for (long j = 0; j < 2 * s.n; j++) dB[j] = 0;
        for (long v = 0; v < vectors; v++) {
            vec dt = channels<float>(s.dt, t, v), x = channels<T>(s.x, t, v), dy = channels<T>(s.dy, t, v);
            vec ddt = {}, ddtx = {}, dtx = dt * x;
            for (long j = 0; j < s.n; j++) {
                long at = (v * s.n + j) * W;
                vec g = load(dh + at) + C[j] * dy, a = exp(dt * load(A + at));
                vec through = g * a * load(before + at);  // the gradient of dt A
                dC[j] += sum(dy * load(after + at));
                dB[j] += sum(g * dtx);
                ddtx += g * B[j];
                ddt += through * load(A + at);
                store(dA + at, load(dA + at) + through * dt);
                store(dh + at, g * a);
            }
            put<T>(s.dx, t, v, ddtx * dt);
            put<float>(s.ddt, t, v, ddt + ddtx * x);
        }
    }

    void backward(Take &take) {
        float *dh = take(size()), *dA = take(size());
        float *kept = take((tokens / SEGMENT + 1) * size()), *states = take((SEGMENT + 1) * size());
        if (!take.memory) return;  // only counting
        spread(s.A, A);
        spread(s.state + sequence * s.D * s.n, h);
        for (long t = 0; t < tokens; t++) {
            if (t % SEGMENT == 0) std::memcpy(kept + t / SEGMENT * size(), h, size() * sizeof(float));
            step(t, h, h, false);
        }
        std::memset(dA, 0, size() * sizeof(float));
        spread(s.dlast_state + sequence * s.D * s.n, dh);
        for (long start = tokens ? (tokens - 1) / SEGMENT * SEGMENT : -1; start >= 0; start -= SEGMENT) {
            long count = tokens - start < SEGMENT ? tokens - start : SEGMENT;
            std::memcpy(states, kept + start / SEGMENT * size(), size() * sizeof(float));
            for (long i = 0; i < count; i++) step(start + i, states + i * size(), states + (i + 1) * size(), false);
            for (long i = count - 1; i >= 0; i--)
                reverse(start + i, states + i * size(), states + (i + 1) * size(), dh, dA);
        }
        gather(dh, s.dstate + sequence * s.D * s.n);
        gather(dA, s.dA + sequence * s.D * s.n);
    }
};

template <class T> void run(const Scan &s, bool backward) {
    gdn::parallel(s.N * s.parts, s.threads, [&](int64_t i) {
        Take count{nullptr};
        Task<T> counted(s, i, count);
        if (backward) counted.backward(count);
        Take take{gdn::scratch(count.used)};
        Task<T> task(s, i, take);
        backward ? task.backward(take) : task.forward();
    });
}

}  // namespace

void selective_scan_forward(const Scan &s) { s.bfloat16 ? run<uint16_t>(s, false) : run<float>(s, false); }
void selective_scan_backward(const Scan &s) { s.bfloat16 ? run<uint16_t>(s, true) : run<float>(s, true); }

}  // namespace GDN_ISA
