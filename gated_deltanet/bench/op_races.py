"""Who races against whom in `gdn bench op`, over which sizes."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

from gated_deltanet import ops
from gated_deltanet.ops import gpu

from . import peers
from .op_baselines import OpEntry, attention_races, scan_races

LENGTHS, QUICK_LENGTHS = (1, 64, 512, 2048, 4096, 16384), (1, 64, 256)
DTYPES = ("float32", "bfloat16")
TABLES = ("lengths", "shapes", "threads", "growth", "attention", "selective_scan")
GPU_TABLES = ("lengths", "shapes", "growth")  # the others measure threads, or ops that have no kernel for a GPU
DEVICES = ("cpu", "cuda")
FOR_STUDY, SHORT = ("reference", "parallel"), 64  # backends for sequences as short as this, unless they are asked for
DIRECTIONS = ("forward", "forward+backward")


class Settings(NamedTuple):
    """What to measure. backends: None for all that are usable. seconds: for each contestant of a race.

    keep_memory: page faults are kept out of every table, not only of growth. device: "cpu" or "cuda" (or ROCm).
    """

    lengths: tuple[int, ...] = LENGTHS
    dtypes: tuple[str, ...] = DTYPES
    heads: int = 16
    d_k: int = 128
    d_v: int = 128
    threads: int = 1
    backends: tuple[str, ...] | None = None
    peers: tuple[str, ...] = ()
    tables: tuple[str, ...] = TABLES
    seconds: float = 1.0
    quick: bool = False
    keep_memory: bool = False
    device: str = "cpu"


class Entry(NamedTuple):
    """A contestant. who: a backend, a peer, or "step_", the op that decodes in place."""

    who: str
    what: str  # "forward", "forward+backward" or "step", one token decoded
    dtype: str
    L: int
    H: int
    d_k: int
    d_v: int
    threads: int
    device: str = "cpu"


class Race(NamedTuple):
    """Entries that take turns."""

    table: str
    entries: list[Entry] | list[OpEntry]


def check(settings: Settings) -> None:
    """Raises ValueError in the words of the command line."""
    among("dtypes", settings.dtypes, DTYPES)
    among("device", (settings.device,), DEVICES)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device is cuda, but {gpu.NO_GPU}; leave the option out to measure the processor")
    among("tables", settings.tables, TABLES if settings.device == "cpu" else GPU_TABLES)
    for name in settings.backends or ():
        if reason := ops.backends()["gated_delta_rule"].get(name):
            raise ValueError(f"--backends has {name}, which cannot be used: {reason}")
    among("backends", settings.backends or (), usable(settings.device))
    among("peers", settings.peers, peers.installed(settings.device) if settings.peers else ())
    for length in settings.lengths:
        at_least_1("lengths", length)
    for name in ("heads", "d_k", "d_v", "threads"):
        at_least_1(name.replace("_", "-"), getattr(settings, name))
    if not settings.seconds >= 0:
        raise ValueError(f"--seconds is {settings.seconds}, expected 0 or more")
    if not races(settings):
        raise ValueError("nothing is left to measure: name some tables, lengths, dtypes and backends")


def among(option: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            raise ValueError(f"--{option} has {value}, expected some of: {', '.join(allowed) or 'none is installed'}")


def at_least_1(option: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"--{option} has {value}, expected at least 1")


def races(settings: Settings) -> list[Race]:
    """All races, in each table from short to long."""
    makers = {"lengths": lengths, "shapes": shapes, "threads": threads, "growth": growth}
    makers |= {"attention": attention_races, "selective_scan": scan_races}
    made = (Race(table, entries) for table in TABLES if table in settings.tables for entries in makers[table](settings))
    return [race for race in made if race.entries]


def lengths(settings: Settings) -> Iterator[list[Entry]]:
    for L in sorted(set(settings.lengths)):
        yield from side_by_side(settings, L, settings.heads, settings.d_k, settings.d_v)


def shapes(settings: Settings) -> Iterator[list[Entry]]:
    """Short sequences, small heads, and the odd ones of the paper's 1.3B model."""
    for L in (16, 100):
        yield from side_by_side(settings, L, settings.heads, settings.d_k, settings.d_v)
    for H, d_k, d_v in ((16, 32, 32), (16, 64, 64), (9, 200, 400)):
        yield from side_by_side(settings, 100 if settings.quick else 512, H, d_k, d_v)


def threads(settings: Settings) -> Iterator[list[Entry]]:
    """One thread against all."""
    L, counts = 256 if settings.quick else 2048, sorted({1, settings.threads})
    yield from backends_alone(settings, [(L, n) for n in counts] if len(counts) > 1 else [])


def growth(settings: Settings) -> Iterator[list[Entry]]:
    """A long sequence against a shorter one."""
    yield from backends_alone(
        settings, [(L, settings.threads) for L in ((128, 512) if settings.quick else (2048, 16384))]
    )


def side_by_side(settings: Settings, L: int, H: int, d_k: int, d_v: int) -> Iterator[list[Entry]]:
    """Backends and peers, in each direction and dtype; decoding, if there is one token."""
    for what, dtype in product(("step",) if L == 1 else DIRECTIONS, settings.dtypes):
        able = [peer for peer in settings.peers if peers.can(peer, what, dtype)]
        names = [*(["step_"] if what == "step" else []), *contestants(settings, L), *able]
        yield [Entry(who, what, dtype, L, H, d_k, d_v, settings.threads, settings.device) for who in names]


def backends_alone(settings: Settings, runs: Sequence[tuple[int, int]]) -> Iterator[list[Entry]]:
    """A race for each direction and dtype. runs: L and threads."""
    H, d_k, d_v = settings.heads, settings.d_k, settings.d_v
    names = contestants(settings, L=max(L for L, _ in runs)) if runs else []
    for what, dtype in product(DIRECTIONS, settings.dtypes):
        yield [Entry(who, what, dtype, L, H, d_k, d_v, n, settings.device) for who in names for L, n in runs]


def contestants(settings: Settings, L: int) -> list[str]:
    if settings.backends is not None:
        return list(settings.backends)
    return [name for name in usable(settings.device) if L <= SHORT or name not in FOR_STUDY]


def usable(device: str) -> list[str]:
    """FLA's kernels are a peer, measured without us between."""
    return [name for name in ops.usable("gated_delta_rule", device) if name != "fla"]
