// Chooses the kernels compiled for this processor, once, and exports them.
#include <cmath>
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
const bool has_avx512bf16 =
    has_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif

// Best first. Intel's processors multiply pairs of bfloat16 numbers no faster than floats, and pairing takes time.
const Choice choices[] = {
#if defined(__x86_64__)
    {&avx512bf16::table, has_avx512bf16, !__builtin_cpu_is("intel")},
    {&avx512::table, has_avx512, true},
    {&avx2::table, has_avx2, true},
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

// Kernels one after another, as Python would call them. Counts in `done` that they have run: an interruption that Python
// only sees when this returns can then be told from one before it.
void gdn_run(const Call *calls, int64_t count, int64_t *done) {
    for (int64_t i = 0; i < count; i++) calls[i].kernel(calls[i].arguments);
    ++*done;
}

// One token of each sequence: gated_delta_rule_recurrent_forward with the token's operands in place of the layout's, so that
// Python can prepare a layout once. Returns 0 if a gate is NaN; then nothing is done.
int gdn_gated_delta_rule_step(const Rule *layout, const Token *token) {
    Rule r = *layout;
    for (int64_t i = 0; i < r.N * r.H_v; i++)
        if (std::isnan(token->log_alpha[i]) || std::isnan(token->beta[i])) return 0;
    r.q.data = token->q, r.k.data = token->k, r.v.data = token->v, r.o.data = token->o;
    r.log_alpha.data = token->log_alpha, r.beta.data = token->beta;
    r.state = token->state, r.last_state = token->last_state;
    chosen->gated_delta_rule_recurrent_forward(r);
    return 1;
}
}
