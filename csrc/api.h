// The C interface: plain structs that Python fills through ctypes. gated_deltanet/ops/native.py mirrors Rows and Rule, the
// cpp.py of an op the structs of its own.
#pragma once
#include <cstdint>

extern "C" {

// Tokens of one operand: row t, head h at data + t·token + h·head, the last axis contiguous. Strides count elements.
struct Rows {
    void *data;
    int64_t token, head;
};

// gated_delta_rule and linear_attention, forward and backward. Sequence n is the tokens ends[n] to ends[n + 1].
struct Rule {
    int64_t N, H, H_v, d_k, d_v, threads;
    int64_t interval;   // tokens between checkpoints: a multiple of the 16 of a chunk
    int32_t bfloat16;   // q, k, v, o and their gradients; everything else is float
    int32_t normalise;  // q and k are first made unit vectors, and q scaled by d_k^-1/2
    const int64_t *ends;
    Rows q, k, v, log_alpha, beta;
    const float *state;  // [N, H_v, d_k, d_v]
    Rows o;
    float *last_state;
    // Training: what backward needs. NULL for inference.
    float *corrections;  // [tokens, H_v, d_v], u before β
    float *checkpoints;  // [ends[N] / interval + N, H_v, d_k, d_v], the state every `interval` tokens
    // Backward only.
    Rows do_, dq, dk, dv, dlog_alpha, dbeta;
    const float *dlast_state;
    float *dstate;
};

// The operands of one token of decoding, all contiguous. last_state may be the state.
struct Token {
    void *q, *k, *v;
    float *log_alpha, *beta, *state, *last_state;
    void *o;
};

// short_conv, forward and backward. Sequence n is the tokens ends[n] to ends[n + 1].
struct ShortConv {
    int64_t N, D, K, threads;
    int32_t bfloat16;  // x, y, the states and their gradients; everything else is float
    int32_t silu;
    const int64_t *ends;
    Rows x;
    const float *taps, *bias;  // [K, D], [D] or NULL
    const void *state;         // [N, K − 1, D]
    Rows y;
    void *last_state;
    // Backward only.
    Rows dy, dx;
    const void *dlast_state;
    void *dstate;
    float *dtaps;  // [K + 1, D]: the last row is dbias
};

// gated_rms_norm, forward and backward, of tokens · H rows of d numbers. gate.data is NULL for the plain norm.
struct RmsNorm {
    int64_t tokens, H, d, threads;
    int32_t bfloat16;
    float eps;
    Rows x, gate;
    const float *weight;  // [d]
    Rows y;
    // Backward only.
    Rows dy, dx, dgate;
    float *dweight;
};

// swiglu, forward and backward, of rows of d numbers.
struct SwiGLU {
    int64_t rows, d, threads;
    int64_t bfloat16;
    Rows gate, up, y;
    // Backward only.
    Rows dy, dgate, dup;
};

// selective_scan, forward and backward. The D channels go in `parts` ranges of `channels`, a multiple of 16.
struct Scan {
    int64_t N, D, n, parts, channels, threads;
    int64_t segment;   // tokens between checkpoints
    int64_t bfloat16;  // x, B, C, y and dy, dx; everything else is float
    const int64_t *ends;
    Rows x, dt, B, C;  // heads are not used
    const float *A, *state;  // [D, n], [N, D, n]
    Rows y;
    float *last_state;
    // Training: the state before every segment, [ends[N] / segment + N, n, D], n rounded up to eights, D to sixteens.
    // NULL for inference.
    float *checkpoints;
    // Backward only.
    Rows dy, dx, ddt;
    float *dBC, *dA;  // [parts, tokens, 2, n] and [N, D, n], to be summed over parts and N
    const float *dlast_state;
    float *dstate;
};

// Causal softmax attention, forward and backward. Sequence n is the tokens ends[n] to ends[n + 1], behind those of the
// cache: token t of the sequence is in slot t % capacity.
struct Attention {
    int64_t N, H, H_kv, d, d_v, threads;
    int64_t window;    // tokens seen, the own one included
    int64_t capacity;  // slots of the cache
    int64_t bfloat16;  // q, k, v, o, the cache and their gradients
    const int64_t *ends, *lengths;  // [N + 1], and [N], the tokens seen before
    Rows q, k, v;
    void *k_cache, *v_cache;  // [N, capacity, H_kv, d], [N, capacity, H_kv, d_v]; a step writes its token there
    const float *turns;       // [positions, d], cosines and then sines by which new q and k are turned; NULL: not at all
    Rows o;
    float *softmax;  // [tokens, H, 2]: the largest score · log₂ e, and 1 / Σ exp(score − largest). NULL for inference
    // Backward only.
    Rows do_, dq, dk, dv;
    void *dk_cache, *dv_cache;  // slots that nobody sees are not written
};

// The losses of rows of logits.
struct CrossEntropy {
    int64_t rows, V, threads;
    int64_t bfloat16;  // the logits
    void *logits;      // [rows, V]
    const int64_t *targets;
    float *losses;
    const float *dlosses;  // of the losses: the logits become their own gradient. Or NULL: they stay
};

// linear: y = x Wᵀ + bias + added, and linear_unpack: rows of W as floats. format says how W, [N, K], lies in memory: as it
// is, transposed, or packed (linear.h).
enum LinearFormat { FLOAT32_ROWS, BFLOAT16_ROWS, FLOAT32_COLUMNS, BFLOAT16_COLUMNS, FLOAT32, BFLOAT16, INT8, INT4 };
struct Linear {
    int64_t M, N, K, threads;
    int64_t format;
    const float *x;  // [M, K]
    const void *weight;
    const float *bias, *added;  // [N], [M, N]; or NULL
    float *y;                   // [M, N]; of linear_unpack [M, K]
    const int64_t *rows;        // linear_unpack: which of W, [M]; or NULL: the first M
    const Linear *next;         // linear: one more product of the same x, to be made with this one; or NULL
};

// linear_few_rows: y = x Wᵀ + bias, everything contiguous, all float or all bfloat16.
struct LinearFewRows {
    int64_t M, N, K, threads;
    int64_t bfloat16;
    const void *x, *weight, *bias;  // [M, K], [N, K], [N]; bias may be NULL
    void *y;                        // [M, N]
};
}
