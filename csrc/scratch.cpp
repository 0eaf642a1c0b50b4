// Declared in scratch.h, the rest of which is for kernels.
#include <cstddef>
#include <cstring>
#include <new>

namespace gdn {

namespace {
struct Block {
    float *data = nullptr;
    size_t size = 0;
    ~Block() { ::operator delete[](data, std::align_val_t(64)); }
};
thread_local Block block;
}  // namespace

float *scratch(size_t floats) {
    if (floats > block.size) {
        ::operator delete[](block.data, std::align_val_t(64));
        block.data = nullptr;
        block.size = 0;
        block.data = static_cast<float *>(::operator new[](floats * sizeof(float), std::align_val_t(64)));
        block.size = floats;
    }
#ifdef GDN_POISON  // tests: what is read before it is written shows as NaN
    std::memset(block.data, 0xff, floats * sizeof(float));
#endif
    return block.data;
}

}  // namespace gdn
