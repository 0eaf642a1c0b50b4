// Memory of weights: read from end to end for every token, which large pages make a quarter faster.
#include <cstdint>
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
