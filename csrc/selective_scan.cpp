// Mamba's selective scan, forward and backward. A vector is W channels. A task has a range of channels of one sequence
// and goes through its tokens by segments: of each vector BLOCK numbers of the states at a time stay in registers.
#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr int BLOCK = W == 16 ? 8 : 4;  // 2 BLOCK is a multiple of W
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// BLOCK vectors, in registers.
struct Block {
    vec at[BLOCK];

    INLINE void zero() { UNROLL for (int j = 0; j < BLOCK; j++) at[j] = vec{}; }
    INLINE void load_from(const float *p) { UNROLL for (int j = 0; j < BLOCK; j++) at[j] = load(p + j * W); }
    INLINE void store_to(float *p) const { UNROLL for (int j = 0; j < BLOCK; j++) store(p + j * W, at[j]); }
};

// What a task reads of the tokens of a segment, for one vector of channels: [segment, W], and for all: [segment, n].
struct Tokens {
    long count, n;
    const float *dt, *dtx, *B, *C;
};

// y_t += C_t · h_t for all tokens. A, h: a Block, h is updated; B and C begin at this Block's columns.
KERNEL void outputs(const Tokens &of, long j0, const float *A_, float *h_, float *y) {
    Block A, h;
    A.load_from(A_);
    h.load_from(h_);
    for (long t = 0; t < of.count; t++) {
        const float *B = of.B + t * of.n + j0, *C = of.C + t * of.n + j0;
        vec dt = load(of.dt + t * W), dtx = load(of.dtx + t * W), sums[2] = {load(y + t * W), {}};
        UNROLL for (int j = 0; j < BLOCK; j++) {
            h.at[j] = exp2(dt * A.at[j]) * h.at[j] + dtx * B[j];
            sums[j % 2] += C[j] * h.at[j];
        }
        store(y + t * W, sums[0] + sums[1]);
    }
    h.store_to(h_);
}

// The states before each token and behind the last, and the decays: [segment + 1, BLOCK, W] and [segment, BLOCK, W].
KERNEL void states(const Tokens &of, long j0, const float *A_, float *h_, float *decay) {
    Block A, h;
    A.load_from(A_);
    h.load_from(h_);
    for (long t = 0; t < of.count; t++) {
        const float *B = of.B + t * of.n + j0;
        vec dt = load(of.dt + t * W), dtx = load(of.dtx + t * W);
        UNROLL for (int j = 0; j < BLOCK; j++) {
            vec a = exp2(dt * A.at[j]);
            h.at[j] = a * h.at[j] + dtx * B[j];
            store(decay + (t * BLOCK + j) * W, a);
            store(h_ + ((t + 1) * BLOCK + j) * W, h.at[j]);
        }
    }
}

// Gradients: of dt A by way of the decays, and of dt x, [segment, W]; of B and C, still one for each lane,
// [segment, 2, n, W]; of A and of the state, a Block each.
struct Gradients {
    float *ddt, *ddtx, *dBC, *dA, *dh;
};

// The tokens in reverse: dh becomes the gradient of the state before the segment.
KERNEL void reverse(const Tokens &of, long j0, const float *A_, const float *h, const float *decay, const float *dy_,
                    const Gradients &to) {
    Block A, dA, dh;
    A.load_from(A_);
    dA.load_from(to.dA);
    dh.load_from(to.dh);
    for (long t = of.count - 1; t >= 0; t--) {
        const float *B = of.B + t * of.n + j0, *C = of.C + t * of.n + j0;
        float *dB = to.dBC + (2 * t * of.n + j0) * W, *dC = dB + of.n * W;
        vec dt = load(of.dt + t * W), dtx = load(of.dtx + t * W), dy = load(dy_ + t * W);
        vec ddt = load(to.ddt + t * W), ddtx = load(to.ddtx + t * W);
        UNROLL for (int j = 0; j < BLOCK; j++) {
            long at = (t * BLOCK + j) * W;
            vec g = dh.at[j] + C[j] * dy;
            store(dC + j * W, load(dC + j * W) + dy * load(h + at + BLOCK * W));
            store(dB + j * W, load(dB + j * W) + dtx * g);
            ddtx += g * B[j];
            dh.at[j] = g * load(decay + at);
            vec through = dh.at[j] * load(h + at);  // the gradient of dt A
            ddt += through * A.at[j];
            dA.at[j] += through * dt;
        }
        store(to.ddt + t * W, ddt);
        store(to.ddtx + t * W, ddtx);
    }
    dA.store_to(to.dA);
    dh.store_to(to.dh);
}

// The sums over lanes of W vectors. Each of log₂ W rounds interleaves the first half of the vectors with the second and
// adds the two halves of the lanes.
INLINE vec sum_each(const float *p) {
    vec row[W];
    std::make_integer_sequence<int, W> all;
    UNROLL for (int i = 0; i < W; i++) row[i] = load(p + i * W);
    UNROLL for (int half = W / 2; half > 0; half /= 2)
        UNROLL for (int i = 0; i < half; i++)
            row[i] = interleave<0>(row[i], row[i + half], all) + interleave<W / 2>(row[i], row[i + half], all);
    return row[0];
}

template <class T> struct Task {
    const Scan &s;
    long sequence, part, d0, vectors, first, tokens, n;  // n: of s.n, whole Blocks
    float *A, *h;             // [vectors, n, W]; A for powers of 2 instead of e
    float *B, *C;             // [segment, n]
    float *dt, *x, *dtx, *y;  // [segment, W]

    Task(const Scan &s, int64_t task, Take &take)
        : s(s), sequence(task / s.parts), part(task % s.parts), d0(part * s.channels),
          vectors(((s.D - d0 < s.channels ? s.D - d0 : s.channels) + W - 1) / W), first(s.ends[sequence]),
          tokens(s.ends[sequence + 1] - first), n(round_up(s.n, BLOCK)), A(take(vectors * n * W)),
          h(take(vectors * n * W)), B(take(s.segment * n)), C(take(s.segment * n)), dt(take(s.segment * W)),
          x(take(s.segment * W)), dtx(take(s.segment * W)), y(take(s.segment * W)) {}

    First lanes(long v) const { return First{s.D - d0 - v * W < W ? s.D - d0 - v * W : W}; }
    long count(long start) const { return tokens - start < s.segment ? tokens - start : s.segment; }

    // [D, n] as [vectors, n, W]; what is behind the last channel and number is zero. And back.
    void spread(const float *from, float *to, float scale = 1) const {
        for (long v = 0; v < vectors; v++)
            for (long j = 0; j < n; j++)
                for (long i = 0; i < W; i++)
                    to[(v * n + j) * W + i] = i < lanes(v).n && j < s.n ? scale * from[(d0 + v * W + i) * s.n + j] : 0;
    }
    void gather(const float *from, float *to) const {
        for (long v = 0; v < vectors; v++)
            for (long j = 0; j < s.n; j++)
                for (long i = 0; i < lanes(v).n; i++) to[(d0 + v * W + i) * s.n + j] = from[(v * n + j) * W + i];
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
    // The state before a segment, of which W channels of number j lie together.
    float *checkpoint(long start, long v, long j) const {
        long index = first / s.segment + sequence + start / s.segment;
        return s.checkpoints + (index * round_up(s.n, 8) + j) * round_up(s.D, 16) + d0 + v * W;
    }

    void read_shared(long start) {
        for (long t = 0; t < count(start); t++) {
            widen_row(row<T>(s.B, start + t), B + t * n, s.n, n);
            widen_row(row<T>(s.C, start + t), C + t * n, s.n, n);
        }
    }
    // next: the segment whose rows are asked for meanwhile: they lie far apart.
    Tokens read(long start, long v, long next) {
        for (long t = 0; t < count(start); t++) {
            if (next >= 0 && next + t < tokens) {
                __builtin_prefetch(row<float>(s.dt, next + t) + d0 + v * W);
                __builtin_prefetch(row<T>(s.x, next + t) + d0 + v * W);
            }
            vec step = channels<float>(s.dt, start + t, v), value = channels<T>(s.x, start + t, v);
            store(dt + t * W, step);
            store(x + t * W, value);
            store(dtx + t * W, step * value);
        }
        return Tokens{count(start), n, dt, dtx, B, C};
    }

    void forward() {
        spread(s.A, A, LOG2_E);
        spread(s.state + sequence * s.D * s.n, h);
        for (long start = 0; start < tokens; start += s.segment) {
            read_shared(start);
            for (long v = 0; v < vectors; v++) {
                if (s.checkpoints)
                    for (long j = 0; j < n; j++) store(checkpoint(start, v, j), load(h + (v * n + j) * W));
                Tokens of = read(start, v, start + s.segment);
                std::memset(y, 0, of.count * W * sizeof(float));
                for (long j = 0; j < n; j += BLOCK) outputs(of, j, A + (v * n + j) * W, h + (v * n + j) * W, y);
                for (long t = 0; t < of.count; t++) put<T>(s.y, start + t, v, load(y + t * W));
            }
        }
        gather(h, s.last_state + sequence * s.D * s.n);
    }
};

template <class T> struct Backward {
    Task<T> t;
    float *dh, *dA;          // [vectors, n, W]
    float *h, *decay;        // [segment + 1, BLOCK, W], [segment, BLOCK, W]
    float *dy, *ddt, *ddtx;  // [segment, W]
    float *dBC;              // [segment, 2, n, W]

    Backward(const Scan &s, int64_t task, Take &take)
        : t(s, task, take), dh(take(t.vectors * t.n * W)), dA(take(t.vectors * t.n * W)),
          h(take((s.segment + 1) * BLOCK * W)), decay(take(s.segment * BLOCK * W)), dy(take(s.segment * W)),
          ddt(take(s.segment * W)), ddtx(take(s.segment * W)), dBC(take(s.segment * 2 * t.n * W)) {}

    void vector(long start, long v) {
        const Scan &s = t.s;
        Tokens of = t.read(start, v, start - s.segment);
        for (long i = 0; i < of.count; i++) {
            if (start) __builtin_prefetch(t.template row<T>(s.dy, start - s.segment + i) + t.d0 + v * W);
            store(dy + i * W, t.template channels<T>(s.dy, start + i, v));
        }
        std::memset(ddt, 0, of.count * W * sizeof(float));
        std::memset(ddtx, 0, of.count * W * sizeof(float));
        for (long j = 0; j < t.n; j += BLOCK) {
            long at = (v * t.n + j) * W;
            for (long k = 0; k < BLOCK; k++) store(h + k * W, load(t.checkpoint(start, v, j + k)));
            states(of, j, t.A + at, h, decay);
            reverse(of, j, t.A + at, h, decay, dy, Gradients{ddt, ddtx, dBC, dA + at, dh + at});
        }
        for (long i = 0; i < of.count; i++) {
            vec through = load(ddtx + i * W);
            t.template put<T>(s.dx, start + i, v, through * load(t.dt + i * W));
            t.template put<float>(s.ddt, start + i, v, LN_2 * load(ddt + i * W) + through * load(t.x + i * W));
        }
    }

    void sum_channels(long start) {
        for (long i = 0; i < t.count(start) * 2 * t.n; i += W) store(dBC + i, sum_each(dBC + i * W));
        float *to = t.s.dBC + (t.part * t.s.ends[t.s.N] + t.first + start) * 2 * t.s.n;
        for (long i = 0; i < t.count(start) * 2; i++) std::memcpy(to + i * t.s.n, dBC + i * t.n, t.s.n * sizeof(float));
    }

    void run() {
        const Scan &s = t.s;
        long of_sequence = t.sequence * s.D * s.n;
        t.spread(s.A, t.A, LOG2_E);
        t.spread(s.dlast_state + of_sequence, dh);
        std::memset(dA, 0, t.vectors * t.n * W * sizeof(float));
        for (long start = t.tokens ? (t.tokens - 1) / s.segment * s.segment : -1; start >= 0; start -= s.segment) {
            t.read_shared(start);
            std::memset(dBC, 0, t.count(start) * 2 * t.n * W * sizeof(float));
            for (long v = 0; v < t.vectors; v++) vector(start, v);
            sum_channels(start);
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
