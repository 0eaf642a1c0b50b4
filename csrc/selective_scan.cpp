// Mamba's selective scan, forward and backward: vectors over channels, so that nothing is summed across a vector but
// the gradients of B and C. A task has a range of channels of one sequence, and its states stay in the cache.
#include "activation.h"
#include "api.h"
#include "scratch.h"
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
};

template <class T> struct Backward {
    Task<T> t;
    long size;
    float *dh, *dA;         // [vectors, n, W]
    float *kept, *states;   // the state before every SEGMENT tokens, and before and behind each token of a segment

    Backward(const Scan &s, int64_t task, Take &take)
        : t(s, task, take), size(t.vectors * s.n * W), dh(take(size)), dA(take(size)),
          kept(take((t.tokens / SEGMENT + 1) * size)), states(take((SEGMENT + 1) * size)) {}

    void run() {
        const Scan &s = t.s;
        long of_sequence = t.sequence * s.D * s.n;
        t.spread(s.A, t.A);
        t.spread(s.state + of_sequence, t.h);
        for (long i = 0; i < t.tokens; i++) {
            if (i % SEGMENT == 0) std::memcpy(kept + i / SEGMENT * size, t.h, size * sizeof(float));
            t.step(i, t.h, t.h, false);
        }
        std::memset(dA, 0, size * sizeof(float));
        t.spread(s.dlast_state + of_sequence, dh);
        for (long start = t.tokens ? (t.tokens - 1) / SEGMENT * SEGMENT : -1; start >= 0; start -= SEGMENT) {
            long count = t.tokens - start < SEGMENT ? t.tokens - start : SEGMENT;
            std::memcpy(states, kept + start / SEGMENT * size, size * sizeof(float));
            for (long i = 0; i < count; i++) t.step(start + i, states + i * size, states + (i + 1) * size, false);
            for (long i = count - 1; i >= 0; i--)
                t.reverse(start + i, states + i * size, states + (i + 1) * size, dh, dA);
        }
        t.gather(dh, s.dstate + of_sequence);
        t.gather(dA, s.dA + of_sequence);
    }
};

template <class T> void forward(const Scan &s) {
    gdn::parallel(s.N * s.parts, s.threads, [&](int64_t task) { in_scratch<Task<T>>(s, task).forward(); });
}
template <class T> void backward(const Scan &s) {
    gdn::parallel(s.N * s.parts, s.threads, [&](int64_t task) { in_scratch<Backward<T>>(s, task).run(); });
}

}  // namespace

void selective_scan_forward(const Scan &s) { s.bfloat16 ? forward<uint16_t>(s) : forward<float>(s); }
void selective_scan_backward(const Scan &s) { s.bfloat16 ? backward<uint16_t>(s) : backward<float>(s); }

}  // namespace GDN_ISA
