// Memory of weights: read from end to end for every token, which large pages make a quarter faster.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "threads.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

// Asks for large pages in memory nobody has written to yet. Where there are none, nothing changes.
extern "C" void gdn_use_large_pages(void *data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t PAGE = 1 << 21;
    uintptr_t first = (uintptr_t(data) + PAGE - 1) / PAGE * PAGE, end = (uintptr_t(data) + bytes) / PAGE * PAGE;
    if (first < end) madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// Reads all of some memory once and does nothing else with it: for benchmarks, how fast weights could be read at best.
extern "C" uint64_t gdn_read(const char *const *data, const int64_t *bytes, int64_t count, int64_t threads) {
    constexpr int64_t PART = 1 << 18;
    typedef uint64_t line __attribute__((vector_size(64)));
    std::atomic<uint64_t> all{0};
    int64_t parts = 0;
    for (int64_t i = 0; i < count; i++) parts += bytes[i] / PART;
    gdn::parallel(parts, threads, [&](int64_t part) {
        int64_t i = 0;
        for (; part >= bytes[i] / PART; i++) part -= bytes[i] / PART;
        line sum[4] = {};
        for (const char *p = data[i] + part * PART, *end = p + PART; p < end; p += 256)
            for (int j = 0; j < 4; j++) {
                line x;
                std::memcpy(&x, p + 64 * j, 64);
                sum[j] ^= x;
            }
        sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
        for (int j = 0; j < 8; j++) all ^= sum[0][j];
    });
    return all;
}
