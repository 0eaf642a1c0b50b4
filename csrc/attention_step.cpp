// One token of decoding for every sequence: writes its key and value into the cache and reads all of it, once and in the
// order of memory. Keys are shared out in pieces, not heads, of which there may be few.
#include <cfloat>
#include <vector>

#include "activation.h"
#include "attention.h"

namespace GDN_ISA {
namespace {

constexpr long PIECE = 256;    // slots of a task
constexpr long TOGETHER = 16;  // slots whose values are added in one go

// Σ x[i] in number i: each round adds the halves of two vectors, and so makes one of them.
INLINE vec sums(vec (&x)[W]) {
    std::make_integer_sequence<int, W> all;
    UNROLL for (int n = W / 2; n > 0; n /= 2)
        UNROLL for (int i = 0; i < n; i++) x[i] = interleave<0>(x[i], x[i + n], all) + interleave<W / 2>(x[i], x[i + n], all);
    return x[0];
}

// Sums over one piece, for each query head: the largest score, Σ exp(score − largest), and Σ exp(…) v.
template <class T> struct Step {
    const Attention &a;
    long group, dk, dv;
    float *Q, *scores;  // [H, dk], [H, PIECE]

    Step(const Attention &a, Take &take)
        : a(a), group(a.H / a.H_kv), dk(round_up(a.d, W)), dv(round_up(a.d_v, W)), Q(take(a.H * dk)), scores(take(a.H * PIECE)) {}

    const T *slot(const void *cache, long n, long i, long width) const { return (const T *)cache + (n * a.capacity + i) * a.H_kv * width; }

    // Asks for the next block in the order of memory, a key head's share of it at a time.
    INLINE void ask(const T *block, long h, long share) const {
        if (h % group) return;
        const char *p = (const char *)(block + h / group * share);
        for (long i = 0; i < share * long(sizeof(T)); i += 64) __builtin_prefetch(p + i, 0, 2);
    }

    void read_queries(long n) {
        float scale = LOG2_E / std::sqrt(float(a.d));
        for (long h = 0; h < a.H; h++) {
            float *q = Q + h * dk;
            widen_row((const T *)a.q.data + n * a.q.token + h * a.q.head, q, a.d, dk);
            for (long j = 0; j < dk; j++) q[j] *= scale;
        }
    }

    // scores[h, i] = q_h · k_i, for W keys at a time.
    KERNEL void score(long n, long first, long count) {
        long next = W * a.H_kv * a.d;
        for (long i = 0; i < count; i += W) {
            const T *block = slot(a.k_cache, n, first + i, a.d);
            long keys = std::min<long>(W, count - i);
            for (long h = 0; h < a.H; h++) {
                ask(block + next, h, W * a.d);
                const T *k = block + h / group * a.d;
                store(scores + h * PIECE + i, keys == W ? products<true>(Q + h * dk, k, W) : products<false>(Q + h * dk, k, keys));
            }
        }
    }
    template <bool WHOLE> INLINE vec products(const float *q, const T *k, long keys) const {
        vec x[W];
        UNROLL for (int i = 0; i < W; i++) x[i] = vec{};
        each_vector(a.d, [&](long j, auto part) INLINE_LAMBDA {
            vec y = load(q + j);
            UNROLL for (int i = 0; i < W; i++) x[i] += y * part.load(k + (WHOLE || i < keys ? i : 0) * a.H_kv * a.d + j);
        });
        return sums(x);
    }

    KERNEL void soften(long count, float *top, float *total) {
        for (long h = 0; h < a.H; h++) {
            float *s = scores + h * PIECE, most = -FLT_MAX;
            for (long i = count; i < round_up(count, W); i++) s[i] = -INFINITY;
            for (long i = 0; i < count; i++) most = std::max(most, s[i]);
            vec added = {};
            for (long i = 0; i < count; i += W) {
                vec e = exp2_of_negative(load(s + i) - most);
                store(s + i, e);
                added += e;
            }
            top[h] = most, total[h] = sum(added);
        }
    }

    // O[h] = Σ_i scores[h, i] v_i, for some keys at a time, so that memory is read in its order.
    KERNEL void add_values(long n, long first, long count, float *O) {
        std::memset(O, 0, a.H * dv * sizeof(float));
        for (long i = 0; i < count; i += TOGETHER) {
            const T *block = slot(a.v_cache, n, first + i, a.d_v);
            long keys = std::min(TOGETHER, count - i);
            for (long h = 0; h < a.H; h++) {
                ask(block + TOGETHER * a.H_kv * a.d_v, h, TOGETHER * a.d_v);
                const T *v = block + h / group * a.d_v;
                const float *p = scores + h * PIECE + i;
                long j = 0;
                for (; j + 4 * W <= a.d_v; j += 4 * W) add_columns<4>(O + h * dv + j, p, v + j, keys, Whole());
                for (; j + W <= a.d_v; j += W) add_columns<1>(O + h * dv + j, p, v + j, keys, Whole());
                if (j < a.d_v) add_columns<1>(O + h * dv + j, p, v + j, keys, First{a.d_v - j});
            }
        }
    }
    template <int N, class Part> INLINE void add_columns(float *o, const float *p, const T *v, long keys, Part part) const {
        vec total[N];
        UNROLL for (int n = 0; n < N; n++) total[n] = load(o + n * W);
        for (long i = 0; i < keys; i++, v += a.H_kv * a.d_v)
            UNROLL for (int n = 0; n < N; n++) total[n] += p[i] * part.load(v + n * W);
        UNROLL for (int n = 0; n < N; n++) store(o + n * W, total[n]);
    }

    void run(long n, long first, long count, float *sums) {
        read_queries(n);
        score(n, first, count);
        soften(count, sums, sums + a.H);
        add_values(n, first, count, sums + 2 * a.H);
    }
};

// Writes sequence n's key and value into its slot. Returns the slots in use.
template <class T> long append(const Attention &a, long n) {
    long length = a.lengths[n], at = n * a.capacity + length % a.capacity;
    for (long head = 0; head < a.H_kv; head++) {
        std::memcpy((T *)a.k_cache + (at * a.H_kv + head) * a.d, (T *)a.k.data + n * a.k.token + head * a.k.head, a.d * sizeof(T));
        std::memcpy((T *)a.v_cache + (at * a.H_kv + head) * a.d_v, (T *)a.v.data + n * a.v.token + head * a.v.head, a.d_v * sizeof(T));
    }
    return std::min(length + 1, long(a.capacity));
}

// The pieces of a sequence, in their order.
template <class T> void combine(const Attention &a, long n, const float *sums, long pieces, long size) {
    long dv = round_up(a.d_v, W);
    std::vector<float> O(dv);
    for (long h = 0; h < a.H; h++) {
        float most = -FLT_MAX, total = 0;
        for (long i = 0; i < pieces; i++) most = std::max(most, sums[i * size + h]);
        std::fill(O.begin(), O.end(), 0);
        for (long i = 0; i < pieces; i++) {
            const float *piece = sums + i * size;
            float share = std::exp2(piece[h] - most);
            total += share * piece[a.H + h];
            for (long j = 0; j < dv; j++) O[j] += share * piece[2 * a.H + h * dv + j];
        }
        for (long j = 0; j < dv; j++) O[j] /= total;
        narrow_row(O.data(), (T *)a.o.data + n * a.o.token + h * a.o.head, a.d_v);
    }
}

template <class T> void step(const Attention &a) {
    if (!a.H) return;
    std::vector<long> used(a.N), first(a.N + 1);  // of each sequence: slots, and its first piece
    for (long n = 0; n < a.N; n++) {
        used[n] = append<T>(a, n);
        first[n + 1] = first[n] + (used[n] + PIECE - 1) / PIECE;
    }
    std::vector<long> sequence(first[a.N]);
    for (long n = 0; n < a.N; n++) std::fill(sequence.begin() + first[n], sequence.begin() + first[n + 1], n);
    long size = a.H * (2 + round_up(a.d_v, W));
    std::vector<float> sums(first[a.N] * size);
    gdn::parallel(first[a.N], a.threads, [&](int64_t task) {
        long n = sequence[task], at = (task - first[n]) * PIECE;
        in_scratch<Step<T>>(a).run(n, at, std::min(PIECE, used[n] - at), sums.data() + task * size);
    });
    for (long n = 0; n < a.N; n++) combine<T>(a, n, sums.data() + first[n] * size, first[n + 1] - first[n], size);
}

}  // namespace

void attention_step(const Attention &a) { a.bfloat16 ? step<uint16_t>(a) : step<float>(a); }

}  // namespace GDN_ISA
