"""Speed and memory of the gated delta rule: every backend and every peer that is installed, side by side."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from gated_deltanet import ops

from . import calls, matmul, memory, peers
from .accuracy import round_operands
from .calls import Call, Inputs
from .cases import gated_delta_rule
from .op_plan import Entry, Race, Settings, plan
from .timing import race

FLOPS = {"step": 6, "forward": 6, "forward+backward": 18}  # useful ones: times d_k d_v, a token and head
STREAM = 8  # tokens that are decoded over and over: so few that they stay in cache beside the state

Row = dict[str, Any]


def measure(settings: Settings, track: Callable[[list[Race]], Iterable[Race]] = iter) -> list[Row]:
    """A row for each entry of the plan. track: wraps the races to show progress."""
    rows: list[Row] = []
    with threads_restored():
        for table, entries in track(plan(settings)):
            keep = settings.keep_memory or table == "growth"  # which comes last: glibc does not quite forget it
            with memory.no_page_faults() if keep else nullcontext(False) as kept_out:
                found = run(entries, settings.seconds, rows)
            rows += [{"table": table, **row, "page_faults_kept_out": kept_out} for row in found]
    inputs_of.cache_clear()
    return rows


def run(entries: Sequence[Entry], seconds: float, earlier: Sequence[Row] = ()) -> list[Row]:
    """One race, the yardstick among the entries. earlier: rows that tell how much memory an entry may need."""
    left_out = {entry: reason for entry in entries if (reason := too_large(entry, earlier))}
    started = {entry: call_of(entry) for entry in entries if entry not in left_out}
    peaks = {entry: memory.peak_bytes(call) for entry, call in started.items()}
    yardsticks = {n: with_threads(n, matmul.product()) for n in sorted({entry.threads for entry in started})}
    best = race({**started, **yardsticks}, seconds)
    rates = {n: matmul.rate(best[n]) / 1e9 for n in yardsticks}
    rows = [row(entry, best[entry], rates[entry.threads], peaks[entry]) for entry in started]
    rows = [{**row, **comparison(row, rows)} for row in rows]
    return rows + [{**entry._asdict(), "left_out": reason} for entry, reason in left_out.items()]


def row(entry: Entry, seconds: float, sgemm_gflops: float, peak_bytes: int | None) -> Row:
    """us: µs per token and head. gflops: useful ones. sgemm_gflops: what torch.mm reached in the same race."""
    heads = entry.L * entry.H
    gflops = FLOPS[entry.what] * entry.d_k * entry.d_v * heads / seconds / 1e9
    return {
        **entry._asdict(),
        "us": seconds / heads * 1e6,
        "gflops": gflops,
        "share_of_sgemm": gflops / sgemm_gflops,
        "sgemm_gflops": sgemm_gflops,
        "peak_bytes": peak_bytes,
    }


def comparison(row: Row, rows: Sequence[Row]) -> Row:
    """How many times faster than each peer; than with one thread; and a token's cost against the shorter sequence's."""
    first = next(other for other in rows if other["who"] == row["who"])
    others = [other for other in rows if other["who"] in peers.NEEDS and row["who"] not in peers.NEEDS]
    found: Row = {"times_faster_than": {other["who"]: other["us"] / row["us"] for other in others}}
    if row["threads"] > first["threads"]:
        found["speedup"] = first["us"] / row["us"]
    if row["L"] > first["L"]:
        found["growth"] = row["us"] / first["us"]
    return found


def too_large(entry: Entry, earlier: Iterable[Row]) -> str | None:
    """Why not to run the entry: it would need more memory than there is, judging by its like on shorter sequences."""
    peaks = {row["L"]: row["peak_bytes"] for row in earlier if row.get("peak_bytes") and is_like(entry, row)}
    available = memory.available_bytes()
    if not peaks or available is None:
        return None
    longest = max(peaks)
    needed = peaks[longest] * entry.L / longest
    return f"needs some {needed / 2**30:.1f} GiB of memory" if needed > available else None


def is_like(entry: Entry, row: Row) -> bool:
    """The same but for the length."""
    return all(row[name] == value for name, value in entry._asdict().items() if name != "L")


def call_of(entry: Entry) -> Call:
    """The entry as a call without arguments, with its number of threads."""
    torch.set_num_threads(entry.threads)  # also when the call is made: ONNX Runtime starts its threads then
    inputs = inputs_of(STREAM if entry.what == "step" else entry.L, *entry[4:7], entry.dtype)
    if entry.who in peers.NEEDS:
        return with_threads(entry.threads, peers.load(entry.who).CALLS[entry.what](inputs))
    return with_threads(entry.threads, ours(entry.who, entry.what, inputs))


def ours(who: str, what: str, inputs: Inputs) -> Call:
    if who == "step_":
        tokens = [{n: x[:, 0] for n, x in token.items()} for token in calls.each_token(inputs)]
        return calls.decode(step_in_place, tokens, inputs["state"], inputs["state"].clone())
    rule = partial(ops.gated_delta_rule, backend=who)
    if what == "step":
        step = partial(step_with, rule)
        return calls.decode(step, calls.each_token(inputs), inputs["state"], inputs["state"].clone())
    return {"forward": calls.forward, "forward+backward": calls.forward_backward}[what](rule, inputs)


def step_with(rule: Callable, token: dict[str, Tensor], state: Tensor) -> Tensor:
    return rule(**token, state=state)[1]


def step_in_place(token: dict[str, Tensor], state: Tensor) -> Tensor:
    ops.gated_delta_rule_step_(**token, state=state)
    return state


@lru_cache(maxsize=2)
def inputs_of(L: int, H: int, d_k: int, d_v: int, dtype: str) -> dict[str, Tensor]:
    return round_operands(gated_delta_rule(L=L, H=H, d_k=d_k, d_v=d_v).inputs, getattr(torch, dtype))


def with_threads(threads: int, call: Call) -> Call:
    def run() -> object:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return call()

    return run


@contextmanager
def threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
