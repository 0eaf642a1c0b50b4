// Every kernel, by name and arguments: one line here, its definition in a file of its own, compiled per instruction set.
#pragma once
#include "api.h"
#include "step.h"

#define KERNELS(X)                               \
    X(gated_delta_rule_forward, Rule)            \
    X(gated_delta_rule_backward, Rule)           \
    X(gated_delta_rule_recurrent_forward, Rule)  \
    X(gated_delta_rule_recurrent_backward, Rule) \
    X(linear_attention_forward, Rule)            \
    X(linear_attention_backward, Rule)           \
    X(linear_attention_per_key_forward, Rule)    \
    X(linear_attention_per_key_backward, Rule)   \
    X(short_conv_forward, ShortConv)             \
    X(short_conv_backward, ShortConv)            \
    X(gated_rms_norm_forward, RmsNorm)           \
    X(gated_rms_norm_backward, RmsNorm)          \
    X(swiglu_forward, SwiGLU)                    \
    X(swiglu_backward, SwiGLU)                   \
    X(selective_scan_forward, Scan)              \
    X(selective_scan_backward, Scan)             \
    X(attention_forward, Attention)              \
    X(attention_backward, Attention)             \
    X(attention_step, Attention)                 \
    X(cross_entropy, CrossEntropy)               \
    X(linear, Linear)                            \
    X(linear_unpack, Linear)                     \
    X(linear_few_rows, LinearFewRows)            \
    X(decode_gates, Gates)                       \
    X(decode_turn, Turn)                         \
    X(decode_sigmoid_gate, SigmoidGate)

struct Kernels {
    const char *instruction_set;
#define FIELD(kernel, Arguments) void (*kernel)(const Arguments &);
    KERNELS(FIELD)
#undef FIELD
};
