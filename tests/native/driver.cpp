// Replays recorded calls of the native kernels and compares what they write with float64 results: needs neither Python nor
// torch, so that it runs where they do not, as in an emulator. tools/native_recording.py writes the cases.
//
//     driver LIBRARY INSTRUCTION_SET THREADS[,THREADS…] CASE…
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "../../csrc/kernels.h"

namespace {

typedef std::vector<char> Bytes;

[[noreturn]] void give_up(const std::string &what) {
    std::fprintf(stderr, "driver: %s\n", what.c_str());
    std::exit(2);
}

// A case, as it stands in its file: numbers of 8 bytes, and a length before everything that has one.
struct Pointer {
    int64_t at, buffer, offset;  // where it stands among the arguments, and where it points to
};
struct Arguments {
    Bytes bytes;
    std::vector<Pointer> pointers;
};
struct Call {
    std::string kernel;
    int64_t threads;                   // where the number of threads stands in the first arguments
    std::vector<Arguments> arguments;  // the kernel's structure; for a step also its operands
};
struct Axis {
    int64_t size, stride;
};
struct Check {
    std::string kernel, result;
    int64_t bfloat16, buffer, offset;
    Axis parts, rows, columns;  // strides count elements; what is compared is the sum over the parts
    double allowed;
    std::vector<double> expected;  // [rows, columns]
};
struct Case {
    std::vector<Bytes> buffers;
    std::vector<Call> calls;
    std::vector<Check> checks;
};

class Reader {
public:
    explicit Reader(const char *path) : path(path), file(path, std::ios::binary) {}
    template <class T> T number() {
        T x;
        read(&x, sizeof x);
        return x;
    }
    template <class T> std::vector<T> numbers() {
        std::vector<T> x(number<int64_t>());
        read(x.data(), x.size() * sizeof(T));
        return x;
    }
    std::string text() {
        Bytes x = numbers<char>();
        return {x.begin(), x.end()};
    }
    template <class F> auto list(F item) {
        std::vector<decltype(item())> items(number<int64_t>());
        for (auto &x : items) x = item();
        return items;
    }

private:
    void read(void *to, size_t size) {
        if (size && !file.read((char *)to, size)) give_up(path + " cannot be read, or ends too early: write the cases again");
    }
    std::string path;
    std::ifstream file;
};

// Braces read in the order they are written in.
Case read_case(const char *path) {
    Reader r(path);
    auto arguments = [&] { return Arguments{r.numbers<char>(), r.numbers<Pointer>()}; };
    auto call = [&] { return Call{r.text(), r.number<int64_t>(), r.list(arguments)}; };
    auto check = [&] {
        return Check{r.text(), r.text(), r.number<int64_t>(), r.number<int64_t>(), r.number<int64_t>(), r.number<Axis>(),
                     r.number<Axis>(), r.number<Axis>(), r.number<double>(), r.numbers<double>()};
    };
    return Case{r.list([&] { return r.numbers<char>(); }), r.list(call), r.list(check)};
}

// A copy of a buffer, aligned as torch's are, between bytes that nothing may write.
class Guarded {
public:
    explicit Guarded(const Bytes &bytes) : size(bytes.size()), whole((size + 3 * GUARD - 1) / GUARD * GUARD) {
        begin = (char *)std::aligned_alloc(GUARD, whole);
        std::memset(begin, FILL, whole);
        std::copy(bytes.begin(), bytes.end(), data());
    }
    Guarded(const Guarded &) = delete;
    Guarded(Guarded &&other) : size(other.size), whole(other.whole), begin(other.begin) { other.begin = nullptr; }
    ~Guarded() { std::free(begin); }
    char *data() { return begin + GUARD; }
    bool intact() const {
        for (size_t i = 0; i < whole; i++)
            if ((i < GUARD || i >= GUARD + size) && begin[i] != FILL) return false;
        return true;
    }
    bool same(const Guarded &other) const { return !std::memcmp(begin, other.begin, whole); }

private:
    static constexpr size_t GUARD = 64;
    static constexpr char FILL = 0x5a;
    size_t size, whole;
    char *begin;
};
typedef std::vector<Guarded> Memory;

// The library's kernels, with the size of their arguments and what became of their checks.
struct Kernel {
    void *function;
    size_t size;
    int passed = 0, failed = 0;
};
std::map<std::string, Kernel> kernels;

void count(const std::string &kernel, bool passed) { ++(passed ? kernels.at(kernel).passed : kernels.at(kernel).failed); }

void *symbol(void *library, const std::string &name) {
    void *found = dlsym(library, name.c_str());
    if (!found) give_up("the library has no " + name + ": compile it again");
    return found;
}

void load(const char *path, const char *instruction_set) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) give_up(dlerror());
    auto use = (int (*)(const char *))symbol(library, "gdn_use_instruction_set");
    if (!use(instruction_set)) give_up(std::string("this library or this processor has no ") + instruction_set);
#define ADD(kernel, Arguments) kernels[#kernel] = {symbol(library, "gdn_" #kernel), sizeof(Arguments)};
    KERNELS(ADD)
    kernels["gated_delta_rule_step"] = {symbol(library, "gdn_gated_delta_rule_step"), sizeof(Rule)};
}

void run(Call call, int64_t threads, Memory &memory) {
    if (!kernels.count(call.kernel)) give_up("csrc/kernels.h has no " + call.kernel);
    const Kernel &kernel = kernels.at(call.kernel);
    Bytes &first = call.arguments[0].bytes;
    if (first.size() != kernel.size) give_up(call.kernel + " takes other arguments than were recorded: write the cases again");
    std::memcpy(first.data() + call.threads, &threads, sizeof threads);
    for (Arguments &arguments : call.arguments)
        for (const Pointer &p : arguments.pointers) {
            void *to = memory[p.buffer].data() + p.offset;
            std::memcpy(arguments.bytes.data() + p.at, &to, sizeof to);
        }
    if (call.arguments.size() == 1)
        ((void (*)(const void *))kernel.function)(first.data());
    else
        ((int (*)(const void *, const void *))kernel.function)(first.data(), call.arguments[1].bytes.data());
    for (const Arguments &arguments : call.arguments)
        for (const Pointer &p : arguments.pointers)
            if (!memory[p.buffer].intact()) {
                count(call.kernel, false);
                std::printf("%s: writes beside what the pointer at byte %d points to\n", call.kernel.c_str(), int(p.at));
            }
}

Memory replay(const Case &c, int64_t threads) {
    Memory memory;
    for (const Bytes &bytes : c.buffers) memory.emplace_back(bytes);
    for (const Call &call : c.calls) run(call, threads, memory);
    return memory;
}

double element(const char *data, int64_t i, bool bfloat16) {
    uint32_t bits = 0;
    float x;
    if (bfloat16)
        std::memcpy((char *)&bits + 2, data + 2 * i, 2);  // the upper half of a float
    else
        std::memcpy(&bits, data + 4 * i, 4);
    std::memcpy(&x, &bits, 4);
    return x;
}

// Root mean square of the difference over that of what is expected; infinite if a number is not finite.
double relative_error(const Check &c, const char *data) {
    double wrong = 0, right = 0;
    const double *expected = c.expected.data();
    for (int64_t row = 0; row < c.rows.size; row++)
        for (int64_t column = 0; column < c.columns.size; column++, expected++) {
            double x = 0;
            for (int64_t part = 0; part < c.parts.size; part++)
                x += element(data, part * c.parts.stride + row * c.rows.stride + column * c.columns.stride, c.bfloat16);
            if (!std::isfinite(x)) return INFINITY;
            wrong += (x - *expected) * (x - *expected), right += *expected * *expected;
        }
    double n = double(c.expected.size());
    return std::sqrt(wrong / n) / std::fmax(std::sqrt(right / n), 1e-30);
}

void test(const char *path, const std::vector<int64_t> &threads) {
    Case c = read_case(path);
    std::vector<Memory> memories;
    for (int64_t n : threads) memories.push_back(replay(c, n));
    for (const Check &check : c.checks) {
        Guarded &first = memories[0][check.buffer];
        std::string name = check.kernel + ", " + path + ", " + check.result;
        double error = relative_error(check, first.data() + check.offset);
        bool passed = error <= check.allowed;
        if (!passed) std::printf("%s: error %.3g, allowed %.3g\n", name.c_str(), error, check.allowed);
        for (size_t i = 1; i < threads.size(); i++)
            if (!first.same(memories[i][check.buffer])) {
                passed = false;
                std::printf("%s: %d threads give other bits than %d\n", name.c_str(), int(threads[i]), int(threads[0]));
            }
        count(check.kernel, passed);
    }
}

}  // namespace

int main(int n, char **arguments) {
    if (n < 5) give_up("expected LIBRARY INSTRUCTION_SET THREADS[,THREADS…] CASE…");
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what failed before a crash is seen
    load(arguments[1], arguments[2]);
    std::vector<int64_t> threads;
    for (char *p = std::strtok(arguments[3], ","); p; p = std::strtok(nullptr, ",")) threads.push_back(std::atol(p));
    for (int i = 4; i < n; i++) test(arguments[i], threads);
    int passed = 0, failed = 0;
    for (auto &[name, kernel] : kernels) {
        if (!kernel.passed && !kernel.failed) kernel.failed = 1, std::printf("%s: no case calls it\n", name.c_str());
        std::printf("%s: %d passed, %d failed\n", name.c_str(), kernel.passed, kernel.failed);
        passed += kernel.passed, failed += kernel.failed;
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
