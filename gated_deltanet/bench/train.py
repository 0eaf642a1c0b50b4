"""How fast models train here: forward, loss, backward and optimiser on random tokens, as in the paper's Fig. 3."""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gated_deltanet.models import CausalLM, count, get_preset
from gated_deltanet.plan.memory import Step, train_memory
from gated_deltanet.plan.sharding import Sharding
from gated_deltanet.plan.speed import train_flops

from . import matmul, memory
from .timing import turns

Row = dict[str, Any]


class Cell(NamedTuple):
    """A model and the shape of its batch."""

    preset: str
    length: int
    batch: int


class Times(NamedTuple):
    """Seconds."""

    gradients: float  # forward, loss and backward
    optimiser: float
    product: float  # the yardstick, torch.mm, right after them


def measure(
    cells: Sequence[Cell],
    dtype: str,
    *,
    rounds: int = 1,
    seconds: float = 0,
    checkpointing: bool = False,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> list[Row]:
    """A row for each cell, in turns: its best of `rounds`, of which none but the first begins after so many seconds.

    dtype: float32, or bfloat16, which is autocast over float32 weights. track: wraps the turns to show progress.
    """
    left_out = {cell: reason for cell in cells if (reason := too_large(cell, dtype, checkpointing))}
    times: dict[Cell, list[Times]] = {cell: [] for cell in cells if cell not in left_out}
    peaks: dict[Cell, int | None] = {}
    for cell in turns([*times], rounds, seconds, track):
        step = Trial(cell, dtype, checkpointing)
        if cell not in peaks:
            peaks[cell] = step.peak_bytes()
        times[cell].append(step.time())
    peak = max((matmul.rate(t.product) for found in times.values() for t in found), default=0.0)
    rows = [row(cell, dtype, min(found, key=sum_of), peak, peaks[cell]) for cell, found in times.items()]
    return rows + [{**cell._asdict(), "dtype": dtype, "left_out": reason} for cell, reason in left_out.items()]


def sum_of(times: Times) -> float:
    return times.gradients + times.optimiser


def row(cell: Cell, dtype: str, times: Times, matmul_flops: float, peak_bytes: int | None) -> Row:
    """mfu: useful FLOPs as a share of the best that torch.mm reached in the same run and dtype."""
    config, tokens = get_preset(cell.preset), cell.length * cell.batch
    flops = train_flops(config, cell.length)
    speed = tokens / sum_of(times)
    return {
        **cell._asdict(),
        "dtype": dtype,
        "parameters": count.parameters(config),
        "tokens_per_second": speed,
        "seconds": sum_of(times),
        "optimiser_seconds": times.optimiser,
        "flops_per_token": flops,
        "mfu": flops * speed / matmul_flops,
        "matmul_gflops": matmul_flops / 1e9,
        "peak_bytes": peak_bytes,
    }


def too_large(cell: Cell, dtype: str, checkpointing: bool) -> str | None:
    """Why not to run it: it would need more memory than there is."""
    available = memory.available_bytes()
    step = Step(cell.batch, cell.length, dtype, checkpointing)
    needed = train_memory(get_preset(cell.preset), step, Sharding(1, 1)).total
    return f"needs some {needed / 2**30:.1f} GiB of memory" if available and needed > available else None


class Trial:
    """A model that has taken no step yet, and its batch."""

    def __init__(self, cell: Cell, dtype: str, checkpointing: bool = False):
        torch.manual_seed(0)
        self.dtype = dtype
        self.model = CausalLM(get_preset(cell.preset))
        self.model.checkpointing = checkpointing
        self.optimiser = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.tokens = torch.randint(self.model.config.vocab_size, (cell.batch, cell.length + 1))

    def gradients(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
            loss = self.model.loss(self.tokens[:, :-1], self.tokens[:, 1:].contiguous())
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimiser.step()
        self.optimiser.zero_grad()

    def step(self) -> None:
        self.gradients()
        self.update()

    def peak_bytes(self) -> int | None:
        """Of a first step, and of what it leaves: weights are there before it."""
        peak = memory.peak_bytes(self.step)
        return None if peak is None else peak + sum(p.nbytes for p in self.model.parameters())

    def time(self) -> Times:
        yardstick = matmul.product(getattr(torch, self.dtype))
        return Times(timed(self.gradients), timed(self.update), min(timed(yardstick) for _ in range(3)))


def timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
