// Scratch memory: a block for each thread, kept from call to call, from which a task takes its arrays.
#pragma once
#include "simd.h"

namespace gdn {

// This thread's block: at least so many floats, aligned to a cache line. It holds whatever the last task left there.
float *scratch(size_t floats);

}  // namespace gdn

namespace GDN_ISA {

// Takes arrays one after another from a block; with no memory it only counts.
struct Take {
    float *memory;
    size_t used = 0;
    float *operator()(size_t floats) {
        float *p = memory ? memory + used : nullptr;
        used += round_up(floats, 16);
        return p;
    }
};

// A Task whose arrays lie in this thread's block. How much it needs only its constructor knows, so that runs twice: first
// to count, and then all its arrays are NULL, for the block may not be large enough yet. A constructor may therefore only
// take arrays: it must not read, fill or otherwise touch them.
template <class Task, class... Arguments> Task in_scratch(const Arguments &...arguments) {
    Take count{nullptr};
    (void)Task(arguments..., count);
    Take take{gdn::scratch(count.used)};
    return Task(arguments..., take);
}

}  // namespace GDN_ISA
