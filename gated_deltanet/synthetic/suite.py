"""The suite: independent cells of a task and a model, each trained and scored by itself."""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gated_deltanet.models import CausalLM, ModelConfig, count

from .models import architecture, tracker
from .tasks import TASKS, Task
from .train import right, stream, train


class Cell(NamedTuple):
    task: str
    model: str

    def __str__(self) -> str:
        return f"{self.task}: {self.model}"

    def config(self) -> ModelConfig:
        task = TASKS[self.task]
        transitions = {str(each): each for each in task.transitions}
        if self.model in transitions:
            return tracker(transitions[self.model], task.vocab_size)
        return architecture(self.model, task.vocab_size)


def cells(architectures: Sequence[str]) -> list[Cell]:
    """Every task that compares architectures with each of these, and each transition of state tracking."""
    for name in architectures:
        architecture(name, 1)  # which knows its name, or raises
    models = {name: [*map(str, task.transitions)] or list(architectures) for name, task in TASKS.items()}
    return [Cell(task, model) for task, names in models.items() for model in dict.fromkeys(names)]


def measure(cell: Cell, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Train and score one cell. With the same seed and threads the same numbers, but for the seconds.

    steps: instead of the task's own. One that diverges has a reason under "left_out", and no score.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    start, task, config = perf_counter(), TASKS[cell.task], cell.config()
    found = {"task": cell.task, "model": cell.model, "parameters": count.parameters(config)}
    found |= {"state_bytes": count.state_bytes(config), "kv_bytes_per_token": count.kv_bytes(config, 1)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CausalLM(config)
    try:
        found |= {"steps": train(model, task, seed, steps or task.steps)} | score(model, task, seed)
    except ValueError as error:  # Diverged, or an op that was given NaN
        found["left_out"] = str(error)
    return found | {"seconds": perf_counter() - start}


def score(model: CausalLM, task: Task, seed: int) -> dict[str, Any]:
    """Accuracy by level, on rows that no training has seen, and overall, where every level counts the same."""
    tests = stream(seed, 2)
    levels = {level: right(model, task.score(tests, level)) for level in task.scored}
    points = [{"level": k, "accuracy": 100 * x.accuracy, "answers": x.asked} for k, x in levels.items()]
    return {"accuracy": sum(point["accuracy"] for point in points) / len(points), "points": points}


def collect(results: Iterable[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    """The document of what was measured, in the order of the tasks. It is of plain values, for JSON."""
    results = list(results)
    scored = [result for result in results if "left_out" not in result]
    tasks = {
        name: describe(task) | {"models": {x["model"]: x for x in scored if x["task"] == name}}
        for name, task in TASKS.items()
        if any(x["task"] == name for x in results)
    }
    left_out = {f"{x['task']}: {x['model']}": x["left_out"] for x in results if "left_out" in x}
    return {"seed": seed, "tasks": tasks, "left_out": left_out, "seconds": sum(x["seconds"] for x in results)}


def describe(task: Task) -> dict[str, Any]:
    levels = {"level": task.level, "trained": list(task.trained), "scored": list(task.scored)}
    return {"title": task.title, "chance": 100 * task.chance, "steps": task.steps} | levels


def run(
    architectures: Sequence[str] = ("gdn",),
    *,
    seed: int = 0,
    steps: int | None = None,
    track: Callable[[list[Cell]], Iterable[Cell]] = iter,
) -> dict[str, Any]:
    """All cells one after the other. track: shows how far it is."""
    return collect((measure(cell, seed=seed, steps=steps) for cell in track(cells(architectures))), seed=seed)
