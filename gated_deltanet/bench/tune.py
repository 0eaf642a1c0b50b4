"""Which tiles of the gated delta rule's kernels are fastest on a GPU: from the fixed ones on, one choice at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gated_deltanet import ops
from gated_deltanet.files import write_json
from gated_deltanet.ops import gpu
from gated_deltanet.ops.gated_delta_rule import tuned_tiles
from gated_deltanet.ops.gated_delta_rule.triton_tiles import Tiles, tiles

from . import cases
from .accuracy import round_operands
from .timing import race

DTYPES = ("bfloat16", "float16", "float32")
SIZES = {"C": (16, 32, 64), "width": (32, 64), "columns": (16, 32, 64), "outputs": (32, 64, 128)}
KERNELS = (
    "ut_transform",
    "state_pass",
    "chunk_output",
    "correction_gradient",
    "state_pass_backward",
    "score_gradients",
    "key_gradients",
)
WARPS, STAGES = (2, 4, 8), (1, 2, 3)
SAME = 2e-2  # relative error between results of two tiles, in any dtype: more is a miscompiled kernel

Choice = tuple[str, Callable[[Tiles], Iterable[Tiles]]]  # a name, and what may be tried instead of the best so far


def tune(
    *,
    d_k: int = 128,
    d_v: int = 128,
    heads: int = 16,
    length: int = 8192,
    dtype: str = "bfloat16",
    seconds: float = 0.2,
    out: Path | None = None,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Search, and write what was found beside what other searches found; from the next process on it is used.

    heads, length: of the call that is timed, forward and backward. seconds: for each trial. out: None for the file
    that is read. track: wraps the choices, for progress. Returns the document that was written, with "tried".
    """
    if reason := gpu.unusable() or (gpu.NO_GPU if not torch.cuda.is_available() else None):
        raise ValueError(f"tune measures tiles on a GPU, and cannot here: {reason}. The fixed tiles are used")
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype}, expected one of: {', '.join(DTYPES)}")
    of, kind = getattr(torch, dtype), gpu.architecture(torch.device("cuda"))
    name, best = tuned_tiles.key(d_k, d_v, of, kind), tiles(d_k, d_v, of, kind)
    inputs = inputs_of(length, heads, d_k, d_v, of)
    expected = results(inputs, name, best)
    found, tried = {best_key(best): seconds_of(inputs, name, best, seconds, expected)}, 0
    for _, others in track(choices()):
        for candidate in others(best):
            if best_key(candidate) not in found:
                found[best_key(candidate)] = seconds_of(inputs, name, candidate, seconds, expected)
                tried += 1
            if found[best_key(candidate)] < found[best_key(best)]:
                best = candidate
    file, before = out or tuned_tiles.FILE, next(iter(found.values()))
    known = {n: t._asdict() for n, t in tuned_tiles.tuned().items()} if file == tuned_tiles.FILE else {}
    entry = {"gpu": torch.cuda.get_device_name(), "fixed_ms": 1e3 * before, "tuned_ms": 1e3 * found[best_key(best)]}
    document = {"tiles": known | {name: best._asdict()}, "measured": {name: entry}}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, document)
    return {**document, "file": str(file), "tried": tried}


def choices() -> list[Choice]:
    """Sizes first, which change what every kernel does; then each kernel's warps and stages."""
    found: list[Choice] = [(size, lambda best, size=size: resized(best, size)) for size in SIZES]
    return found + [(kernel, lambda best, kernel=kernel: rescheduled(best, kernel)) for kernel in KERNELS]


def resized(best: Tiles, size: str) -> Iterator[Tiles]:
    return (best._replace(**{size: number}) for number in SIZES[size])


def rescheduled(best: Tiles, kernel: str) -> Iterator[Tiles]:
    for warps in WARPS:
        for stages in STAGES:
            yield best._replace(warps=best.warps | {kernel: warps}, stages=best.stages | {kernel: stages})


def best_key(candidate: Tiles) -> str:
    """Equal for equal tiles, whichever way their options are written."""
    return f"{candidate[:5]} {[candidate.options(kernel) for kernel in KERNELS]}"


def inputs_of(L: int, H: int, d_k: int, d_v: int, dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = round_operands(cases.gated_delta_rule(L=L, H=H, d_k=d_k, d_v=d_v).inputs, dtype)
    return {name: x.to("cuda") for name, x in inputs.items()}


def results(inputs: dict[str, Tensor], name: str, candidate: Tiles) -> list[Tensor]:
    """The gradients, to which all kernels contribute."""
    with tuned_tiles.using(name, candidate):
        return list(call_of(inputs)())


def call_of(inputs: dict[str, Tensor]) -> Callable[[], Any]:
    return cases.forward_backward(lambda **x: ops.gated_delta_rule(**x, backend="triton"), inputs)


def seconds_of(
    inputs: dict[str, Tensor], name: str, candidate: Tiles, seconds: float, expected: Sequence[Tensor]
) -> float:
    """Of a forward and backward; infinite if the tiles do not fit the GPU, or give other results."""
    try:
        for x, y in zip(results(inputs, name, candidate), expected, strict=True):
            if not float((x.double() - y.double()).norm()) <= SAME * float(y.double().norm()):
                return inf
        with tuned_tiles.using(name, candidate):
            return race({name: call_of(inputs)}, seconds, torch.cuda.synchronize)[name]
    except Exception:  # of triton: too much shared memory or too many registers, a tile it cannot compile
        return inf
