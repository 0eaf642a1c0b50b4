"""Training and scoring of one small model on one task: AdamW, a warm-up, a cosine; it ends when the task is solved."""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Generator
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from gated_deltanet.models import CausalLM

from .batch import NOT_ASKED, Batch
from .tasks import Task

WEIGHT_DECAY, CLIP = 0.01, 1.0
WARMUP = 50  # steps
CHECKED = 100  # steps between checks
SOLVED = 0.998  # of the hardest level trained, in two checks one after the other


class Diverged(ValueError):
    """Loss, gradient or logits are not finite."""


def stream(seed: int, number: int) -> Generator:
    """Of random numbers: 0 to train, 1 to check, 2 to score, 3 to choose with. Those of different seeds differ."""
    return Generator().manual_seed(4 * seed + number)


class Right(NamedTuple):
    right: int
    asked: int

    @property
    def accuracy(self) -> float:
        return self.right / self.asked


def train(model: CausalLM, task: Task, seed: int, steps: int) -> int:
    """The number of steps that it took."""
    rows, checks = stream(seed, 0), stream(seed, 1)
    batches = (task.train(rows, level) for level in cycle(task.trained))
    solved = False
    for step in learn_all(model, batches, task.peak_lr, steps):
        if step % CHECKED == 0:
            before, solved = solved, right(model, task.score(checks, task.trained[-1])).accuracy >= SOLVED
            if before and solved:
                return step
    return steps


def learn_all(model: CausalLM, batches: Iterator[Batch], peak_lr: float, steps: int) -> Iterator[int]:
    """Learns from one batch after another; tells after each how many steps were made."""
    optimizer = AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * schedule(step, steps)
        learn(model, optimizer, next(batches), step)
        yield step + 1


def schedule(step: int, steps: int) -> float:
    """The share of the peak: linear up, a cosine down to a tenth."""
    warmup = min(1.0, (step + 1) / WARMUP)
    return warmup * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def learn(model: CausalLM, optimizer: AdamW, batch: Batch, step: int) -> None:
    loss = model.loss(batch.tokens, batch.targets, ignore_index=NOT_ASKED)
    optimizer.zero_grad()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), CLIP)
    if not math.isfinite(float(norm)):
        raise Diverged(f"loss {float(loss):.4g} and gradient {float(norm):.4g} in step {step + 1}")
    optimizer.step()


@torch.no_grad()
def right(model: CausalLM, batch: Batch, rows: int = 64) -> Right:
    """How many answers are the most probable token, of all that are asked for."""
    found = asked = 0
    for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
        x, _ = model.hidden(tokens, keep_state=False)
        here = targets != NOT_ASKED
        logits = model.logits(x[here])
        if not bool(logits.isfinite().all()):
            raise Diverged("its logits are not finite")
        found += int((logits.argmax(-1) == targets[here]).sum())
        asked += int(here.sum())
    return Right(found, asked)
