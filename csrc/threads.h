// Tasks over threads: OpenMP's pool, which torch shares, or threads of our own where there is no OpenMP.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

namespace gdn {

// Runs task(0) … task(count − 1), at most `threads` at a time; one after another in a forked child, where pools hang.
void parallel(int64_t count, int64_t threads, const std::function<void(int64_t)> &task);

// This thread's scratch memory, at least so many floats, aligned to a cache line; kept for the next call.
float *scratch(size_t floats);

}  // namespace gdn
