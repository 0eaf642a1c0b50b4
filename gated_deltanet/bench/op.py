"""Speed and memory of ops: every backend of the gated delta rule and every peer, side by side; attention; the scan."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from gated_deltanet import matmul, ops
from gated_deltanet.plan.devices import available_bytes

from . import cases, machine, memory, op_baselines
from .accuracy import round_operands
from .cases import Call, Inputs
from .op_baselines import READ, OpEntry
from .op_races import DTYPES, GPU_TABLES, LENGTHS, QUICK_LENGTHS, TABLES, Entry, Race, Settings, check, races
from .peers import NEEDS, installed, load, versions
from .timing import race

FLOPS = {"step": 6, "forward": 6, "forward+backward": 18}  # useful ones: times d_k d_v, a token and head
STREAM = 8  # tokens that are decoded over and over: so few that they stay in cache beside the state

Row = dict[str, Any]


def op(
    *,
    lengths: tuple[int, ...] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    heads: int = 16,
    d_k: int = 128,
    d_v: int = 128,
    threads: int | None = None,
    backends: tuple[str, ...] | None = None,
    peers: tuple[str, ...] | None = None,
    tables: tuple[str, ...] | None = None,
    seconds: float = 1.0,
    quick: bool = False,
    keep_memory: bool = False,
    device: str = "cpu",
    track: Callable[[list[Race]], Iterable[Race]] = iter,
) -> dict[str, Any]:
    """How fast the gated delta rule is here, as a document of plain JSON values: a row for each contestant of a race.

    lengths: of the sequence; 1 is a decoding step. dtypes: of q, k and v. threads: None for as many as torch uses.
    backends: None for all that are usable, the slow ones for short sequences only. peers: packages of `peers.NEEDS`;
    None for all that are installed. tables: None for all; "lengths", those above; "shapes", short sequences and odd
    heads; "threads", one against all; "growth", a long sequence against a shorter one; "attention" (full, windowed,
    packed, decoding) and "selective_scan", our forms beside torch's. seconds: for each contestant. quick: shorter
    sequences and less time. keep_memory: page faults do not count (with glibc). device: "cpu", or "cuda" for the tables
    lengths, shapes and growth on a GPU. track: wraps the races, for progress.
    """
    settings = Settings(
        lengths=(QUICK_LENGTHS if quick else LENGTHS) if lengths is None else lengths,
        dtypes=dtypes,
        heads=heads,
        d_k=d_k,
        d_v=d_v,
        threads=torch.get_num_threads() if threads is None else threads,
        backends=backends,
        peers=tuple(installed(device)) if peers is None else peers,
        tables=(TABLES if device == "cpu" else GPU_TABLES) if tables is None else tables,
        seconds=min(seconds, 0.1) if quick else seconds,
        quick=quick,
        keep_memory=keep_memory,
        device=device,
    )
    check(settings)
    document = machine.record(settings._asdict()) | {"peers": versions(settings.peers)}
    return {**document, "rows": measure(settings, track)}


def measure(settings: Settings, track: Callable[[list[Race]], Iterable[Race]] = iter) -> list[Row]:
    """A row for each entry of the plan. track: wraps the races to show progress."""
    rows: list[Row] = []
    with threads_restored():
        for table, entries in track(races(settings)):
            keep = settings.keep_memory or table == "growth"  # which comes last: glibc does not quite forget it
            with memory.no_page_faults() if keep else nullcontext(False) as kept_out:
                found = run(entries, settings.seconds, rows)
            rows += [{"table": table, **row, "page_faults_kept_out": kept_out} for row in found]
    inputs_of.cache_clear()
    return rows


def run(entries: Sequence[Entry | OpEntry], seconds: float, earlier: Sequence[Row] = ()) -> list[Row]:
    """One race, the yardstick among the entries. earlier: rows that tell how much memory an entry may need."""
    left_out = {entry: reason for entry in entries if (reason := too_large(entry, earlier))}
    started = {entry: call_of(entry) for entry in entries if entry not in left_out}
    device = next((entry.device for entry in started if isinstance(entry, Entry)), "cpu")
    peaks = {entry: peak_bytes(call, device) for entry, call in started.items()}
    threads = sorted({entry.threads for entry in started})
    yardsticks = {n: with_threads(n, matmul.product(device=device)) for n in threads}
    best = race({**started, **yardsticks}, seconds, partial(wait_for, device))
    rates = {n: matmul.rate(best[n], device) / 1e9 for n in yardsticks}
    rows = [row(entry, best[entry], rates[entry.threads], peaks[entry]) for entry in started]
    rows = [{**row, **comparison(row, rows)} for row in rows]
    return rows + [{**entry._asdict(), "left_out": reason} for entry, reason in left_out.items()]


def peak_bytes(call: Call, device: str) -> int | None:
    return memory.peak_bytes(call) if device == "cpu" else memory.peak_bytes_on_gpu(call, device)


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def row(entry: Entry | OpEntry, seconds: float, sgemm_gflops: float, peak_bytes: int | None) -> Row:
    """us: µs per token and head; per token of a scan; of attention's step, of the whole call.

    gflops: useful ones. sgemm_gflops: what torch.mm reached in the same race.
    """
    if isinstance(entry, Entry):
        heads = entry.L * entry.H
        gflops = FLOPS[entry.what] * entry.d_k * entry.d_v * heads / seconds / 1e9
    else:
        heads, gflops = op_baselines.units(entry), op_baselines.flops(entry) / seconds / 1e9
    return {
        **entry._asdict(),
        "us": seconds / heads * 1e6,
        "gflops": gflops,
        "share_of_sgemm": gflops / sgemm_gflops,
        "sgemm_gflops": sgemm_gflops,
        "peak_bytes": peak_bytes,
    }


def comparison(row: Row, rows: Sequence[Row]) -> Row:
    """How many times faster than each peer; than with one thread; and a token's cost against the shorter sequence's.

    Of another op: how many times faster than the other contestants, and of decoding, what share of reading's speed.
    """
    if "op" in row:
        faster = {other["who"]: other["us"] / row["us"] for other in rows if other is not row}
        return {"times_faster_than": faster} | ({"share_of_reading": faster[READ]} if READ in faster else {})
    first = next(other for other in rows if other["who"] == row["who"])
    others = [other for other in rows if other["who"] in NEEDS and row["who"] not in NEEDS]
    found: Row = {"times_faster_than": {other["who"]: other["us"] / row["us"] for other in others}}
    if row["threads"] > first["threads"]:
        found["speedup"] = first["us"] / row["us"]
    if row["L"] > first["L"]:
        found["growth"] = row["us"] / first["us"]
    return found


def too_large(entry: Entry | OpEntry, earlier: Iterable[Row]) -> str | None:
    """Why not to run the entry: it would need more memory than there is, judging by its like on shorter sequences."""
    peaks = {row["L"]: row["peak_bytes"] for row in earlier if row.get("peak_bytes") and is_like(entry, row)}
    on_gpu = isinstance(entry, Entry) and entry.device == "cuda"
    available = torch.cuda.mem_get_info()[0] if on_gpu else available_bytes()
    if not peaks or available is None:
        return None
    longest = max(peaks)
    needed = peaks[longest] * entry.L / longest
    return f"needs some {needed / 2**30:.1f} GiB of memory" if needed > available else None


def is_like(entry: Entry | OpEntry, row: Row) -> bool:
    """The same but for the length."""
    return all(row.get(name) == value for name, value in entry._asdict().items() if name != "L")


def call_of(entry: Entry | OpEntry) -> Call:
    """The entry as a call without arguments, with its number of threads."""
    torch.set_num_threads(entry.threads)  # also when the call is made: ONNX Runtime starts its threads then
    if isinstance(entry, OpEntry):
        return with_threads(entry.threads, op_baselines.call_of(entry))
    inputs = inputs_of(STREAM if entry.what == "step" else entry.L, *entry[4:7], entry.dtype, entry.device)
    if entry.who in NEEDS:
        return with_threads(entry.threads, load(entry.who).CALLS[entry.what](inputs))
    return with_threads(entry.threads, ours(entry.who, entry.what, inputs))


def ours(who: str, what: str, inputs: Inputs) -> Call:
    if who == "step_":
        tokens = [{n: x[:, 0] for n, x in token.items()} for token in cases.each_token(inputs)]
        return cases.decode(step_in_place, tokens, inputs["state"], inputs["state"].clone())
    rule = partial(ops.gated_delta_rule, backend=who)
    if what == "step":
        step = partial(step_with, rule)
        return cases.decode(step, cases.each_token(inputs), inputs["state"], inputs["state"].clone())
    return {"forward": cases.forward, "forward+backward": cases.forward_backward}[what](rule, inputs)


def step_with(rule: Callable, token: dict[str, Tensor], state: Tensor) -> Tensor:
    return rule(**token, state=state)[1]


def step_in_place(token: dict[str, Tensor], state: Tensor) -> Tensor:
    ops.gated_delta_rule_step_(**token, state=state)
    return state


@lru_cache(maxsize=2)
def inputs_of(L: int, H: int, d_k: int, d_v: int, dtype: str, device: str = "cpu") -> dict[str, Tensor]:
    inputs = round_operands(cases.gated_delta_rule(L=L, H=H, d_k=d_k, d_v=d_v).inputs, getattr(torch, dtype))
    return {name: moved(x, device) for name, x in inputs.items()}


def moved(x: Tensor, device: str) -> Tensor:
    return x.to(device)


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
