// Chooses the kernels compiled for this processor, once, and exports them.
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
namespace avx512bf16 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
#endif
namespace portable {
extern const Kernels table;
}

namespace {

struct Choice {
    const Kernels *table;
    bool usable, worthwhile;
};

#if defined(__x86_64__)
const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif

// Best first. Intel's processors multiply pairs of bfloat16 numbers no faster than floats, and pairing takes time.
const Choice choices[] = {
#if defined(__x86_64__)
    {&avx512bf16::table, has_avx512 && __builtin_cpu_supports("avx512bf16"), !__builtin_cpu_is("intel")},
    {&avx512::table, has_avx512, true},
    {&avx2::table, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), true},
#endif
    {&portable::table, true, true},
};

const Kernels *best() {
    for (const Choice &choice : choices)
        if (choice.usable && choice.worthwhile) return choice.table;
    return nullptr;
}
const Kernels *chosen = best();

}  // namespace

extern "C" {

const char *gdn_instruction_set() { return chosen->instruction_set; }

// Uses another instruction set, for tests. 0 if there is none of that name or this processor lacks it.
int gdn_use_instruction_set(const char *name) {
    for (const Choice &choice : choices)
        if (choice.usable && !std::strcmp(choice.table->instruction_set, name)) {
            chosen = choice.table;
            return 1;
        }
    return 0;
}

#define EXPORT(kernel, Arguments) \
    void gdn_##kernel(const Arguments *arguments) { chosen->kernel(*arguments); }
KERNELS(EXPORT)

// One token of each sequence: gated_delta_rule_recurrent_forward with other operands than the layout's, so that Python can
// prepare a layout once. operands: q, k, v, log_alpha, beta, state, last_state, o, contiguous. Returns 0 if a gate is NaN;
// then nothing is done.
int gdn_gated_delta_rule_step(const Rule *layout, void *const *operands) {
    Rule r = *layout;
    Rows *rows[] = {&r.q, &r.k, &r.v, &r.log_alpha, &r.beta};
    for (Rows *x : rows) x->data = *operands++;
    const float *log_alpha = (float *)r.log_alpha.data, *beta = (float *)r.beta.data;
    for (int64_t i = 0; i < r.N * r.H_v; i++)
        if (log_alpha[i] != log_alpha[i] || beta[i] != beta[i]) return 0;
    r.state = (float *)operands[0], r.last_state = (float *)operands[1], r.o.data = operands[2];
    chosen->gated_delta_rule_recurrent_forward(r);
    return 1;
}
}
