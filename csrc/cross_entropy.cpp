// The cross entropy of rows of logits, and its gradient in their place. A task takes a row as floats: its maximum, the
// exponentials and their sum, and the gradient are passes over what is still in the cache.
#include "activation.h"
#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr int SIDES = 4;            // vectors compared and summed side by side, so that none waits for the one before
constexpr long STRIDE = SIDES * W;
constexpr long NUMBERS = 16384;     // logits of a task, at least

struct Row {
    long V, padded;
    float *e;  // [padded]

    Row(const CrossEntropy &a, Take &take) : V(a.V), padded(round_up(V, STRIDE)), e(take(padded)) {}

    // The logits, −∞ behind the last. Returns their maximum; NaN is none.
    template <class T> float read(const T *logits) {
        long whole = V / STRIDE * STRIDE;
        for (long i = whole; i < padded; i++) e[i] = i < V ? widen(logits[i]) : -INFINITY;
        vec most[SIDES];
        UNROLL for (int k = 0; k < SIDES; k++) most[k] = broadcast(-INFINITY);
        for (long i = 0; i < padded; i += STRIDE)
            UNROLL for (int k = 0; k < SIDES; k++) {
                vec x = i < whole ? load(logits + i + k * W) : load(e + i + k * W);
                store(e + i + k * W, x);
                most[k] = x > most[k] ? x : most[k];
            }
        float largest = -INFINITY;
        for (int k = 0; k < SIDES; k++)
            for (int i = 0; i < W; i++) largest = most[k][i] > largest ? most[k][i] : largest;
        return largest;
    }
    // Each x becomes exp(x − largest). Returns their sum.
    float exponentials(float largest) {
        vec total[SIDES] = {};
        for (long i = 0; i < padded; i += STRIDE)
            UNROLL for (int k = 0; k < SIDES; k++) {
                vec x = exp(load(e + i + k * W) - largest);
                store(e + i + k * W, x);
                total[k] += x;
            }
        return sum((total[0] + total[1]) + (total[2] + total[3]));
    }
    template <class T> void gradient(float total, long target, float dloss, T *to) const {
        float scale = dloss / total;
        each_vector(V, [&](long i, auto part) { part.store(to + i, part.load(e + i) * scale); });
        narrow((e[target] / total - 1) * dloss, to + target);
    }
};

template <class T> void rows(const CrossEntropy &a) {
    long of_task = round_up(NUMBERS, a.V) / a.V;
    gdn::parallel(round_up(a.rows, of_task) / of_task, a.threads, [&](int64_t task) {
        Row row = in_scratch<Row>(a);
        for (long i = task * of_task; i < a.rows && i < (task + 1) * of_task; i++) {
            T *logits = (T *)a.logits + i * a.V;
            float of_target = widen(logits[a.targets[i]]), largest = row.read(logits);
            float total = row.exponentials(largest);
            a.losses[i] = largest - of_target + std::log(total);
            if (a.dlosses) row.gradient(total, a.targets[i], a.dlosses[i], logits);
        }
    });
}

}  // namespace

void cross_entropy(const CrossEntropy &a) { a.bfloat16 ? rows<uint16_t>(a) : rows<float>(a); }

}  // namespace GDN_ISA
