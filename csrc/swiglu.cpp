// SwiGLU, silu(gate) · up, and its gradient, element by element.
#include "activation.h"
#include "api.h"
#include "threads.h"

namespace GDN_ISA {
namespace {

constexpr long COLUMNS = 8192, BLOCK = 32768;  // most columns, and numbers, of a task

// row(t, column, columns) for all rows, cut into pieces, in parallel.
template <class F> void each_piece(const SwiGLU &a, F row) {
    long columns = a.d < COLUMNS ? a.d : COLUMNS, across = a.d ? round_up(a.d, columns) / columns : 0;
    long rows = columns ? round_up(BLOCK, columns) / columns : 1;
    gdn::parallel(round_up(a.rows, rows) / rows * across, a.threads, [&](int64_t task) {
        long first = task / across * rows, last = first + rows < a.rows ? first + rows : a.rows;
        long column = task % across * columns, end = column + columns < a.d ? column + columns : a.d;
        for (long t = first; t < last; t++) row(t, column, end - column);
    });
}

template <class T> T *at(const Rows &x, long t, long column) { return (T *)x.data + t * x.token + column; }

template <class T> void forward(const SwiGLU &a) {
    each_piece(a, [&](long t, long column, long columns) {
        const T *gate = at<T>(a.gate, t, column), *up = at<T>(a.up, t, column);
        T *y = at<T>(a.y, t, column);
        each_vector(columns, [&](long i, auto part) {
            part.store(y + i, silu(part.load(gate + i)) * part.load(up + i));
        });
    });
}

template <class T> void backward(const SwiGLU &a) {
    each_piece(a, [&](long t, long column, long columns) {
        const T *gate = at<T>(a.gate, t, column), *up = at<T>(a.up, t, column), *dy = at<T>(a.dy, t, column);
        T *dgate = at<T>(a.dgate, t, column), *dup = at<T>(a.dup, t, column);
        each_vector(columns, [&](long i, auto part) {
            vec g = part.load(gate + i), d = part.load(dy + i), s = sigmoid(g);
            part.store(dgate + i, d * part.load(up + i) * silu_slope(g, s));
            part.store(dup + i, d * (g * s));
        });
    });
}

}  // namespace

void swiglu_forward(const SwiGLU &a) { a.bfloat16 ? forward<uint16_t>(a) : forward<float>(a); }
void swiglu_backward(const SwiGLU &a) { a.bfloat16 ? backward<uint16_t>(a) : backward<float>(a); }

}  // namespace GDN_ISA
