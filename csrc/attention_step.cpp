// One token of decoding for every sequence: writes its key and value into the cache and reads all of it, once and in the
// order of memory. Keys are shared out in pieces, not heads, of which there may be few.
#include <cfloat>
#include <vector>

#include "attention.h"

namespace GDN_ISA {
namespace {

constexpr long PIECE = 256;  // slots of a task

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
    float *Q, *scores, *products;  // [H, dk], [H, PIECE], [H, W, W]

    Step(const Attention &a, Take &take)
        : a(a), group(a.H / a.H_kv), dk(round_up(a.d, W)), dv(round_up(a.d_v, W)), Q(take(a.H * dk)), scores(take(a.H * PIECE)), products(take(a.H * W * W)) {}

    const T *slot(const void *cache, long n, long i, long width) const { return (const T *)cache + (n * a.capacity + i) * a.H_kv * width; }

    void read_queries(long n) {
        float scale = LOG2_E / std::sqrt(float(a.d));
        for (long h = 0; h < a.H; h++) {
            float *q = Q + h * dk;
            widen_row((const T *)a.q.data + n * a.q.token + h * a.q.head, q, a.d, dk);
            for (long j = 0; j < dk; j++) q[j] *= scale;
        }
    }

    // scores[h, i] = q_h · k_i. Keys are read in the order of memory, and the vectors of W of them summed together.
    KERNEL void score(long n, long first, long count) {
        for (long i = 0; i < count; i += W) {
            long keys = std::min<long>(W, count - i);
            for (long key = 0; key < keys; key++) {
                const T *k = slot(a.k_cache, n, first + i + key, a.d);
                for (long h = 0; h < a.H; h++) store(products + (h * W + key) * W, product(Q + h * dk, k + h / group * a.d));
            }
            for (long h = 0; h < a.H; h++) {
                vec x[W];
                UNROLL for (int key = 0; key < W; key++) x[key] = load(products + (h * W + key) * W);
                store(scores + h * PIECE + i, sums(x));
            }
        }
    }
    INLINE vec product(const float *q, const T *k) const {
        vec total = {};
        each_vector(a.d, [&](long j, auto part) INLINE_LAMBDA { total += load(q + j) * part.load(k + j); });
        return total;
    }

    KERNEL void soften(long count, float *top, float *total) {
        for (long h = 0; h < a.H; h++) {
            float *s = scores + h * PIECE, most = -FLT_MAX;
            for (long i = count; i < round_up(count, W); i++) s[i] = -INFINITY;
            for (long i = 0; i < count; i++) most = std::max(most, s[i]);
            vec added = {};
            for (long i = 0; i < count; i += W) {
                vec e = exp2(load(s + i) - most);
                store(s + i, e);
                added += e;
            }
            top[h] = most, total[h] = sum(added);
        }
    }

    // O[h] = Σ_i scores[h, i] v_i, in the order of memory.
    KERNEL void add_values(long n, long first, long count, float *O) {
        std::memset(O, 0, a.H * dv * sizeof(float));
        for (long i = 0; i < count; i++) {
            const T *v = slot(a.v_cache, n, first + i, a.d_v);
            for (long h = 0; h < a.H; h++) {
                float *o = O + h * dv, p = scores[h * PIECE + i];
                const T *row = v + h / group * a.d_v;
                each_vector(a.d_v, [&](long j, auto part) INLINE_LAMBDA { store(o + j, load(o + j) + p * part.load(row + j)); });
            }
        }
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
