// Tasks over threads: OpenMP's pool, which torch shares, or threads of our own where there is no OpenMP.
#pragma once
#include <cstdint>
#include <functional>

namespace gdn {

// Runs task(0) … task(count − 1), at most `threads` at a time; one after another in a forked child, where pools hang.
void parallel(int64_t count, int64_t threads, const std::function<void(int64_t)> &task);

}  // namespace gdn
