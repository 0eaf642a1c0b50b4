// The kernels of step.h. A row's bits do not depend on those beside it.
#include "step.h"

#include <cmath>

#include "activation.h"

namespace GDN_ISA {

void decode_gates(const Gates &a) {
    for (long i = 0; i < a.N * a.H; i++) {
        long h = i % a.H;
        float z = a.a[i] + a.dt_bias[h];
        float softplus = (z > 0 ? z : 0) + std::log1p(std::exp(-std::fabs(z)));
        a.y[i] = -std::exp(a.A_log[h]) * softplus;
        a.y[a.N * a.H + i] = float(a.beta_max) / (1 + std::exp(-a.b[i]));
    }
}

void decode_turn(const Turn &a) {
    long half = a.dims / 2;
    for (long n = 0; n < a.N; n++) {
        const float *cosines = a.turns + a.lengths[n] * a.dims, *sines = cosines + half;
        for (long h = 0; h < a.H; h++) {
            float *x = a.y + (n * a.H + h) * a.d;
            for (long i = 0; i < half; i++) {
                float first = x[i], second = x[i + half];
                x[i] = first * cosines[i] - second * sines[i];
                x[i + half] = second * cosines[i] + first * sines[i];
            }
        }
    }
}

void decode_sigmoid_gate(const SigmoidGate &a) {
    each_vector(a.n, [&](long i, auto part) { part.store(a.y + i, part.load(a.y + i) * sigmoid(part.load(a.gate + i))); });
}

}  // namespace GDN_ISA
