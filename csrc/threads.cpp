#include "threads.h"

#ifdef _OPENMP
#include <omp.h>
#else
#include <atomic>
#include <thread>
#include <vector>
#endif
#ifndef _WIN32
#include <pthread.h>
#endif

namespace gdn {

static bool forked = false;
#ifndef _WIN32
static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif

void parallel(int64_t count, int64_t threads, const std::function<void(int64_t)> &task) {
    if (threads > count) threads = count;
    if (threads <= 1 || forked) {
        for (int64_t i = 0; i < count; i++) task(i);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < count; i++) task(i);
#else
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t i; (i = next++) < count;) task(i);
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; t++) others.emplace_back(work);
    work();
    for (auto &other : others) other.join();
#endif
}

}  // namespace gdn
