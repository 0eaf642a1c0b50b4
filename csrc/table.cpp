// The kernels of one instruction set.
#include "kernels.h"

#define TEXT(x) #x
#define NAME(x) TEXT(x)

namespace GDN_ISA {
#define DECLARE(kernel, Arguments) void kernel(const Arguments &);
KERNELS(DECLARE)
#define ENTRY(kernel, Arguments) &kernel,
extern const Kernels table;
const Kernels table = {NAME(GDN_ISA), KERNELS(ENTRY)};
}  // namespace GDN_ISA
