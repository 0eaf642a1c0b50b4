"""How fast models train here: forward, loss, backward and optimiser on random tokens, as in the paper's Fig. 3."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, profiler

from gated_deltanet import matmul
from gated_deltanet.matmul import timed
from gated_deltanet.models import CausalLM, count, get_preset
from gated_deltanet.models.presets import choose
from gated_deltanet.paper import FIG_3_SHAPES
from gated_deltanet.plan.devices import available_bytes
from gated_deltanet.plan.memory import Step, train_memory
from gated_deltanet.plan.sharding import Sharding
from gated_deltanet.plan.speed import cpu_rates, seconds_per_token, train_flops

from . import machine, memory
from .timing import turns

Row = dict[str, Any]
PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")
ATTENTION = "aten::_scaled_dot_product"  # torch's fused kernel, native too, but not ours
ARTICLE = 300  # tokens of the median document of a packed row, about an encyclopedia's; a third is over 460
FORWARD = "GeneratedBackwardFor_gdn_"  # what torch calls the forward of an operator that can be differentiated


class Cell(NamedTuple):
    """A model and the shape of its batch."""

    preset: str
    length: int
    batch: int
    packed: bool = False  # rows of documents, as in training, rather than of one each

    def ends(self) -> list[int]:
        """Where sequences begin and end in all rows together, the same for every preset."""
        tokens, normal = self.length * self.batch, torch.Generator().manual_seed(0)
        ends = {*range(0, tokens + 1, self.length)}
        if self.packed:
            documents = (ARTICLE * torch.randn(tokens // 8 + 1, generator=normal).exp()).long() + 8
            ends |= {end for end in documents.cumsum(0).tolist() if end < tokens}
        return sorted(ends)


class Times(NamedTuple):
    """Seconds."""

    gradients: float  # forward, loss and backward
    optimiser: float
    product: float  # the yardstick, torch.mm, right after them


def train(
    presets: Sequence[str] = (),
    *,
    size: str = "tiny",
    shapes: Sequence[tuple[int, int]] = FIG_3_SHAPES,
    dtype: str = "float32",
    rounds: int = 3,
    minutes: float = 60,
    packed: bool = False,
    checkpointing: bool = False,
    keep_memory: bool = False,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """How fast models train in each shape, (length, batch): a document of plain JSON values, a row for each.

    presets: or architectures of this size; without any the paper's ten. dtype: float32, or bfloat16, which is autocast
    over float32 weights. rounds: of which none but the first begins that would end after `minutes`. packed: rows of
    documents of unequal length, a median of 300 tokens, each from an empty state. checkpointing: keep only the blocks'
    inputs for backward. keep_memory: page faults do not count (with glibc). track: wraps the turns to show progress.
    `figures.draw_train` draws it.
    """
    cells, settings = chosen(presets, size, shapes, dtype, packed)
    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}, expected at least 1")
    settings |= {"rounds": rounds, "minutes": minutes, "checkpointing": checkpointing, "keep_memory": keep_memory}
    document, limits = machine.record(settings), {"rounds": rounds, "seconds": 60 * minutes}
    with memory.no_page_faults() if keep_memory else nullcontext():
        rows = measure(cells, dtype, **limits, checkpointing=checkpointing, track=track)
    return {**document, "rows": rows}


def profile(
    presets: Sequence[str] = (),
    *,
    size: str = "tiny",
    shape: tuple[int, int] = FIG_3_SHAPES[0],
    dtype: str = "float32",
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Where the time of a training step goes: products, native kernels or other ops. Arguments as of `train`."""
    cells, settings = chosen(presets, size, [shape], dtype)
    return {**machine.record(settings), "rows": [shares(cell, dtype) for cell in track(cells)]}


def chosen(
    presets: Sequence[str], size: str, shapes: Sequence[tuple[int, int]], dtype: str, packed: bool = False
) -> tuple[list[Cell], dict[str, Any]]:
    """Every preset in every shape, checked, and the settings to record."""
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {dtype!r}, expected float32 or bfloat16")
    if not shapes:
        raise ValueError("--shapes is empty, expected some such as 2Kx16")
    cells = [Cell(preset, *shape, packed) for preset in choose(presets, size) for shape in shapes]
    settings = {"presets": list(presets), "size": size, "shapes": [list(shape) for shape in shapes], "dtype": dtype}
    return cells, settings | {"packed": packed}


def beside_plan(cell: Cell, dtype: str, peak_flops: float, checkpointing: bool = False) -> Row:
    """What a plan predicts for one step of a preset here, and what it took. peak_flops: of torch.mm, measured."""
    config, step = get_preset(cell.preset), Step(cell.batch, cell.length, dtype, checkpointing)
    (row,) = measure([cell], dtype, checkpointing=checkpointing)
    return {
        "predicted_tokens_per_second": 1 / seconds_per_token(config, cell.length, cpu_rates(peak_flops), checkpointing),
        "tokens_per_second": row["tokens_per_second"],
        "predicted_bytes": train_memory(config, step, Sharding(1, 1)).total,
        "bytes": row["peak_bytes"],
    }


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
    lengths = [end - begin for begin, end in pairwise(cell.ends())]
    flops = sum(n * train_flops(config, n) for n in lengths) / tokens
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
    available = available_bytes()
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
        self.cu_seqlens = torch.tensor(cell.ends()) if cell.packed else None

    def gradients(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
            tokens, targets = self.tokens[:, :-1], self.tokens[:, 1:]
            if self.cu_seqlens is not None:
                tokens, targets = tokens.reshape(1, -1), targets.reshape(1, -1)
            loss = self.model.loss(tokens, targets.contiguous(), cu_seqlens=self.cu_seqlens)
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


def shares(cell: Cell, dtype: str) -> dict[str, Any]:
    """Shares of the seconds of one step, after one to warm up. ops: by name, the longest first."""
    trial = Trial(cell, dtype)
    trial.step()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as seen:
        trial.step()
    seconds = {event.key: event.self_cpu_time_total / 1e6 for event in seen.key_averages()}
    total = sum(seconds.values())
    ops = [
        {"op": op, "kind": kind(op), "share": s / total, "seconds": s}
        for op, s in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    kinds = {name: sum(op["share"] for op in ops if op["kind"] == name) for name in ("product", "native", "other")}
    return {**cell._asdict(), "dtype": dtype, "seconds": total, "shares": kinds, "ops": ops}


def kind(op: str) -> str:
    """product; native: our C++ kernels, forward and backward, and torch's fused attention; or other."""
    if op in PRODUCTS:
        return "product"
    ours = op.startswith(("gdn::", FORWARD)) and "_cpp" in op and not op.endswith("Backward")
    return "native" if ours or op.startswith(ATTENTION) else "other"
