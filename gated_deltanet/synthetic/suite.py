"""The suite: every task with every model that is compared on it, each trained and scored by itself; and its table."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gated_deltanet.models import CausalLM, ModelConfig, count
from gated_deltanet.quantity import show_count
from gated_deltanet.result import Result, Table, Track, answer_each, answer_file, check_any, untracked

from .batch import Batch
from .models import architecture, tracker
from .tasks import TASKS, Task
from .train import right, stream, train


def synthetic(
    architectures: Sequence[str] = ("gdn",),
    *,
    seed: int = 0,
    steps: int | None = None,
    limit: int | None = None,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """Percent right of each architecture on each task, and of Gated DeltaNet's transitions in state tracking.

    steps: of training on each task; None: the task's own. limit: rows scored of each level, the first ones; None: 256.
    keep: the folder in which what was measured is kept: a suite that was killed goes on. track: is given the cells.
    """
    wanted = {str(cell): cell for cell in cells(architectures)}

    def measure_some(names: list[str]) -> list[dict[str, Any]]:
        return [measure(wanted[name], seed=seed, steps=steps, limit=limit) for name in names]

    made = answer_each(list(wanted), measure_some, answer_file(keep, "synthetic", seed, steps, limit))
    measured = [found for _, found in zip(track(list(wanted.values()), "training"), made, strict=True)]
    return result(collect(measured, seed=seed))


def result(document: dict[str, Any]) -> Result:
    def draw(file: Path) -> None:
        from .figure import draw

        draw(document, file)

    check_any([found for task in document["tasks"].values() for found in task["models"]], document["left_out"])
    return Result("synthetic", document, table(document), short_table(document), notes(document), draw)


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


def measure(cell: Cell, *, seed: int = 0, steps: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Train and score one cell. The same numbers with the same seed, processor, threads and torch, but the seconds.

    steps: instead of the task's own. limit: rows scored of each level, the first ones; None: all. One that diverges
    has a reason under "left_out", and no score.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps is {steps}, expected at least 1")
    task = TASKS[cell.task]._replace(steps=steps or TASKS[cell.task].steps)
    return cell._asdict() | measure_model(cell.config(), task, seed, limit)


def measure_model(config: ModelConfig, task: Task, seed: int = 0, limit: int | None = None) -> dict[str, Any]:
    """As `measure`, of any model and any task. checked: of the hardest level trained, percent right on other rows."""
    start = perf_counter()
    found: dict[str, Any] = {"parameters": count.parameters(config)}
    found |= {"state_bytes": count.state_bytes(config), "kv_bytes_per_token": count.kv_bytes(config, 1)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CausalLM(config)
    try:
        found |= {"steps": train(model, task, seed, task.steps)} | score(model, task, seed, limit)
        found["checked"] = 100 * right(model, task.score(stream(seed, 3), task.trained[-1])).accuracy
    except ValueError as error:  # Diverged, or an op that was given NaN
        found["left_out"] = str(error)
    return found | {"seconds": perf_counter() - start}


def score(model: CausalLM, task: Task, seed: int, limit: int | None = None) -> dict[str, Any]:
    """Accuracy by level, on rows that no training has seen, and overall, where every level counts the same."""
    tests = stream(seed, 2)
    levels = {level: right(model, Batch(*(x[:limit] for x in task.score(tests, level)))) for level in task.scored}
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


def table(document: dict[str, Any]) -> Table:
    """One line a task and model."""
    title, columns, lines = short_table(document)
    results = [result for task in document["tasks"].values() for result in task["models"].values()]
    costs = [[show_count(x["parameters"]), state(x), str(x["steps"]), f"{x['seconds']:.0f}"] for x in results]
    lines = [line + cost for line, cost in zip(lines, costs, strict=True)]
    return title, [*columns, "parameters", "state", "steps", "seconds"], lines


def short_table(document: dict[str, Any]) -> Table:
    """For a terminal: without what it cost."""
    lines = []
    for task in document["tasks"].values():
        name = f"{task['title']} (chance {task['chance']:.1f})"
        for i, result in enumerate(task["models"].values()):
            lines.append([name if i == 0 else "", result["model"], f"{result['accuracy']:.1f}", by_level(result)])
    return "Synthetic tasks: percent right", ["task", "model", "accuracy", "by level"], lines


def by_level(result: dict[str, Any]) -> str:
    return ", ".join(f"{point['level']}: {point['accuracy']:.1f}" for point in result["points"])


def state(result: dict[str, Any]) -> str:
    """Of one sequence, and what each token adds to it."""
    parts = [f"{result['state_bytes'] / 1024:.1f} KB"] if result["state_bytes"] else []
    parts += [f"{result['kv_bytes_per_token']} B a token"] if result["kv_bytes_per_token"] else []
    return " + ".join(parts)


def notes(document: dict[str, Any]) -> list[str]:
    levels = (
        f"{task['title']}: {task['level']}, trained on {trained_levels(task)}" for task in document["tasks"].values()
    )
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        f"Levels: {'; '.join(levels)}.",
        "Parity, S3 and S5 are Gated DeltaNet's: one layer, no decay, no convolution; a row's second half is scored.",
        "A low score tells that a model did not learn it in these steps at this rate, not that it never could.",
        f"One seed ({document['seed']}), {document['seconds'] / 60:.1f} minutes; who has solved a task stops.",
    ]


def trained_levels(task: dict[str, Any]) -> str:
    return ", ".join(map(str, task["trained"]))
