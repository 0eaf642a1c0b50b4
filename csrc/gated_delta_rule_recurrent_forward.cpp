// The gated delta rule, token by token, forward: decoding, and whole sequences with the same results.
#include "gated_delta_rule_recurrent.h"

namespace GDN_ISA {
namespace {
using namespace recurrent;

constexpr int SHARE = 1 << 16;  // numbers of a state for a thread to update; for fewer, starting it costs more

struct Forward {
    const Rule &r;
    Sizes s;
    Keys keys;
    float *S;  // [panels, d_k, PANEL]

    Forward(const Rule &r, Take &take) : r(r), s(r.d_k, r.d_v), keys(r, s, take), S(take(s.panels * s.d_k * PANEL)) {}

    template <class T> void sequence(long n, long head) {
        long size = s.d_k * s.d_v, begin = r.ends[n], end = r.ends[n + 1];
        float *state = (float *)r.state + (n * r.H_v + head) * size, *last = r.last_state + (n * r.H_v + head) * size;
        if (begin == end && state != last) std::memcpy(last, state, size * sizeof(float));
        for (long first = begin; first < end; first += BLOCK) {
            long tokens = std::min<long>(end - first, BLOCK);
            keys.read<T>(first, head * r.H / r.H_v, tokens);
            for (long p = 0; p < s.panels; p++) {
                long column = p * PANEL, columns = s.d_v - column;
                View kept{S + p * s.d_k * PANEL, PANEL}, from = kept, to = kept;
                if (columns >= PANEL) {  // used where it is: through scratch it would be moved twice
                    if (first == begin) from = {state + column, s.d_v};
                    if (first + tokens == end) to = {last + column, s.d_v};
                } else if (first == begin) {
                    read_panel(state + column, s, columns, kept.data);
                }
                run_panel(
                    keys, first, tokens, head, from, kept, to,
                    [&](long t) { return Row::read(at<T>(r.v, first + t, head) + column, columns); },
                    [&](long t, const Corrected &c) { c.o.write(at<T>(r.o, first + t, head) + column, columns); });
                if (columns < PANEL && first + tokens == end) write_panel(kept.data, s, columns, last + column);
            }
        }
    }
};

// Decoding: one token for each of many heads, whose states are read and written where they are. Reading one panel goes
// together with writing the one before, of the head before too: memory is busy all the time.
struct Decode {
    const Rule &r;
    Sizes s;
    Keys keys[2];  // of two heads: one panel's update is still to come while the next head is read
    float *S;      // a last panel that is not whole

    Decode(const Rule &r, Take &take)
        : r(r), s(r.d_k, r.d_v), keys{Keys(r, s, take), Keys(r, s, take)}, S(take(s.d_k * PANEL)) {}

    template <class T> void partial_panel(const Keys &k, long token, long head, long column, float *state, float *last) {
        long columns = s.d_v - column;
        View view{S, PANEL};
        read_panel(state + column, s, columns, S);
        run_panel(
            k, token, 1, head, view, view, view,
            [&](long) { return Row::read(at<T>(r.v, token, head) + column, columns); },
            [&](long, const Corrected &c) { c.o.write(at<T>(r.o, token, head) + column, columns); });
        write_panel(S, s, columns, last + column);
    }

    // Heads begin … end − 1 of the N · H_v.
    template <class T> void heads(long begin, long end) {
        Update update{};  // still to be done, if it has a place to go to
        for (long i = begin; i < end; i++) {
            long n = i / r.H_v, head = i % r.H_v, token = r.ends[n], d_k = s.d_k;
            float *state = (float *)r.state + i * d_k * s.d_v, *last = r.last_state + i * d_k * s.d_v;
            Keys &k = keys[i % 2];
            k.read<T>(token, head * r.H / r.H_v, 1);
            Token now = k.token(token, 0, head);
            for (long column = 0; column < s.d_v; column += PANEL) {
                if (s.d_v - column < PANEL) {
                    partial_panel<T>(k, token, head, column, state, last);
                    continue;
                }
                View from{state + column, s.d_v}, to{last + column, s.d_v};
                Row x, y;
                if (update.to.data)  // from its last row up: those are still in L1
                    recall(now, d_k, x, y, [&](long i) __attribute__((always_inline)) {
                        update.row(d_k - 1 - i);
                        return Row::load_from(from.data + i * from.stride);
                    });
                else
                    recall(now, from, d_k, x, y);
                Corrected c(now, Row::read(at<T>(r.v, token, head) + column, PANEL), x, y);
                c.o.write(at<T>(r.o, token, head) + column, PANEL);
                update = {from, to, now, c.u};
            }
        }
        for (long i = s.d_k - 1; update.to.data && i >= 0; i--) update.row(i);
    }
};

bool one_token_each(const Rule &r) {
    for (long n = 0; n < r.N; n++)
        if (r.ends[n + 1] - r.ends[n] != 1) return false;
    return true;
}

template <class T> void run_forward(const Rule &r) {
    long work = (r.ends[r.N] - r.ends[0]) * r.H_v * r.d_k * r.d_v, heads = r.N * r.H_v;
    long threads = std::min<long>(r.threads, 1 + work / SHARE);
    if (one_token_each(r))
        return gdn::parallel(threads, threads, [&](int64_t part) {
            in_scratch<Decode>(r).heads<T>(part * heads / threads, (part + 1) * heads / threads);
        });
    gdn::parallel(heads, threads, [&](int64_t task) {
        in_scratch<Forward>(r).sequence<T>(task / r.H_v, task % r.H_v);
    });
}

}  // namespace

void gated_delta_rule_recurrent_forward(const Rule &r) { r.bfloat16 ? run_forward<uint16_t>(r) : run_forward<float>(r); }

}  // namespace GDN_ISA
