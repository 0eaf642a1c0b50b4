"""How the run is doing, live: a bar at a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from gated_deltanet.matmul import matmul_flops
from gated_deltanet.models import count

from .metrics import Record, Sink
from .run import Run

EVERY = 10.0  # seconds between lines
OLD = 0.95  # weight of what was before in running means


@contextmanager
def progress(run: Run) -> Iterator[Sink]:
    """A sink that shows records."""
    console = Console(stderr=True)
    pace = Pace(run)
    if not console.is_terminal:
        yield lines(run, pace)
        return
    columns = [TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.completed}/{task.total}")]
    with Progress(*columns, Said(), TimeRemainingColumn(), console=console) as bar:
        yield live(bar, bar.add_task(run.recipe.name, total=run.recipe.steps, completed=run.counters.step), pace)


class Pace:
    """Running means of speed and loss."""

    def __init__(self, run: Run):
        self.flops = 3 * count.flops_per_token(run.model.config, run.recipe.length)  # forward, and twice that backward
        self.peak = matmul_flops(run.dtype, run.place.device) * run.place.ranks
        self.batch, self.device = run.recipe.batch_tokens, run.place.device
        self.loss = self.seconds = self.lr = 0.0
        self.valid = ""

    def update(self, record: Record) -> None:
        if "valid_loss" in record:
            self.valid = f"  valid {record['valid_bits_per_byte']:.3f} bits/byte"
        elif "skipped" not in record:
            self.lr, old = record["lr"], OLD if self.seconds else 0.0
            self.loss = old * self.loss + (1 - old) * record["loss"]
            self.seconds = old * self.seconds + (1 - old) * record["seconds"]

    def __str__(self) -> str:
        if not self.seconds:
            return ""
        speed = self.batch / self.seconds
        said = f"loss {self.loss:.3f}{self.valid}  lr {self.lr:.1e}  {speed:,.0f} tokens/s"
        return f"{said}  MFU {speed * self.flops / self.peak:.0%}  {memory(self.device) / 2**30:.1f} GiB"


class Said(ProgressColumn):
    """What Pace says."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("said", ""))


def live(bar: Progress, task: TaskID, pace: Pace) -> Sink:
    def show(record: Record) -> None:
        pace.update(record)
        bar.update(task, completed=record["step"], said=str(pace))
        if "skipped" in record:
            bar.console.print(skipped(record))

    return show


def lines(run: Run, pace: Pace) -> Sink:
    steps, shown = run.recipe.steps, [0.0]

    def show(record: Record) -> None:
        pace.update(record)
        if "skipped" in record:
            print(skipped(record), file=sys.stderr)
        elif "lr" in record and (perf_counter() - shown[0] > EVERY or record["step"] == steps):
            shown[0] = perf_counter()
            left = timedelta(seconds=round((steps - record["step"]) * pace.seconds))
            print(f"step {record['step']}/{steps}  {pace}  {left} left", file=sys.stderr)
        elif "valid_loss" in record:
            print(f"step {record['step']}/{steps}{pace.valid}", file=sys.stderr)

    return show


def skipped(record: Record) -> str:
    what = f"loss {record['loss']:.4g}, gradient {record['grad_norm']:.4g}"
    return f"step {record['step']} is skipped, {record['skipped']}: {what}"


def memory(device: torch.device) -> int:
    """The most that was used, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource  # Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
