// What a decoded token needs between the kernels of ops: each of a few numbers, in float.
#pragma once
#include <cstdint>

extern "C" {

// log α = −exp(A_log) softplus(a + dt_bias), β = beta_max σ(b).
struct Gates {
    int64_t N, H, threads;
    double beta_max;
    const float *a, *b, *A_log, *dt_bias;  // [N, H], [N, H], [H], [H]
    float *y;                              // [2, N, H]: log α, β
};

// Turns the first `dims` numbers of each head, in place, to the position that is its sequence's length.
struct Turn {
    int64_t N, H, d, dims, threads;
    const int64_t *lengths;  // [N]
    const float *turns;      // [positions, dims]: cosines and then sines
    float *y;                // [N, H, d]
};

// y = y σ(gate), of n numbers.
struct SigmoidGate {
    int64_t n, threads;
    const float *gate;
    float *y;
};

// A kernel of dispatch.cpp with its arguments.
struct Call {
    void (*kernel)(const void *);
    const void *arguments;
};
}
