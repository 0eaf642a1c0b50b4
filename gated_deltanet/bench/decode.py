"""How fast models read a text and go on with it, and what they remember of it, against its length."""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gated_deltanet.models import CausalLM, count, get_preset
from gated_deltanet.models.presets import choose
from gated_deltanet.models.session import Session

from . import machine, memory
from .timing import turns

Row = dict[str, Any]


class Cell(NamedTuple):
    preset: str
    context: int  # tokens read


class Times(NamedTuple):
    """Seconds."""

    prefill: float
    step: float  # one token decoded: the median


def decode(
    presets: Sequence[str] = (),
    *,
    size: str = "tiny",
    context: Sequence[int] = (1024, 2048, 4096, 8192, 16384),
    dtype: str = "float32",
    steps: int = 32,
    rounds: int = 3,
    minutes: float = 30,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """How fast models read each context and go on with it, and what memory that takes: a document of plain JSON values.

    presets: or architectures of this size; without any the paper's ten. dtype: of weights and computation. steps:
    tokens written after each context. rounds: of which none but the first begins that would end after `minutes`. track:
    wraps the turns to show progress. `figures.draw_decode` draws it.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {dtype!r}, expected float32 or bfloat16")
    for option, value in (("steps", steps), ("rounds", rounds)):
        if value < 1:
            raise ValueError(f"--{option} is {value}, expected at least 1")
    if not context:
        raise ValueError("--context is empty, expected some such as 4K")
    settings = {"presets": list(presets), "size": size, "context": list(context), "dtype": dtype}
    settings |= {"steps": steps, "rounds": rounds, "minutes": minutes}
    cells = [Cell(preset, length) for preset in choose(presets, size) for length in sorted(set(context))]
    document = machine.record(settings)
    rows = measure(cells, dtype, steps=steps, rounds=rounds, seconds=60 * minutes, track=track)
    return {**document, "rows": rows}


def measure(
    cells: Sequence[Cell],
    dtype: str,
    *,
    steps: int = 32,
    rounds: int = 1,
    seconds: float = 0,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> list[Row]:
    """A row for each cell, in turns: its best of `rounds`, of which none but the first begins after so many seconds.

    dtype: of weights and computation. steps: tokens decoded after the context. track: wraps the turns.
    """
    times: dict[Cell, list[Times]] = {cell: [] for cell in cells}
    held: dict[Cell, dict[str, int | None]] = {}
    for cell in turns(cells, rounds, seconds, track):
        model = model_of(cell.preset, dtype)
        if cell not in held:
            held[cell] = memory_of(model, cell.context)
        times[cell].append(time(model, cell.context, steps))
    return [row(cell, dtype, times[cell], held[cell]) for cell in cells]


def row(cell: Cell, dtype: str, times: Sequence[Times], held: dict[str, int | None]) -> Row:
    prefill, step = min(t.prefill for t in times), min(t.step for t in times)
    return {
        **cell._asdict(),
        "dtype": dtype,
        "parameters": count.parameters(get_preset(cell.preset)),
        "prefill_seconds": prefill,
        "prefill_tokens_per_second": cell.context / prefill,
        "decode_ms": 1e3 * step,
        "decode_tokens_per_second": 1 / step,
        **held,
    }


def model_of(preset: str, dtype: str) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(get_preset(preset)).to(getattr(torch, dtype)).eval()


def tokens_of(model: CausalLM, context: int) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (context,))


def memory_of(model: CausalLM, context: int) -> dict[str, int | None]:
    """Bytes: what a session holds after the context, and the most that reading it took besides the weights."""
    session, tokens = Session(model), tokens_of(model, context)
    peak = memory.peak_bytes(lambda: session.read(tokens))
    return {"session_bytes": session.nbytes, "peak_bytes": peak}


def time(model: CausalLM, context: int, steps: int) -> Times:
    """Greedy, each token the most probable one."""
    session, tokens = Session(model), tokens_of(model, context)
    start = perf_counter()
    logits = session.read(tokens)
    prefill, seconds = perf_counter() - start, []
    for _ in range(steps):
        start = perf_counter()
        logits = session.append(logits.argmax(-1, keepdim=True).view(1))[-1]
        seconds.append(perf_counter() - start)
    return Times(prefill, sorted(seconds)[len(seconds) // 2])
