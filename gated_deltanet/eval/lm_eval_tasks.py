"""lm-evaluation-harness's tasks on rows of ours or of the hub, one at a time. Needs lm-eval."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from datasets import Dataset, disable_progress_bars  # pyright: ignore[reportMissingImports]
from lm_eval import evaluate as lm_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.task import Task  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
from lm_eval.tasks._yaml_loader import load_yaml  # pyright: ignore[reportMissingImports]
from lm_eval.utils import apply_template  # pyright: ignore[reportMissingImports]

from gated_deltanet.data.hub import check_available
from gated_deltanet.models.sampling import Sampling

from .data_sets import Row, Set, find_file, read_rows
from .harness import sampling_of

SEED = 1234  # lm-eval's own, of examples shown before a question, of which there are none
RESAMPLES = 1000  # for the standard error of a perplexity


def evaluate(model: LM, name: str, data: Set, folder: Path | None, *, limit: int | None) -> dict[str, Any]:
    """The scores of one task. folder: of local files; None: the hub. limit: its first rows."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    disable_progress_bars()
    start = perf_counter()
    files = None if folder is None else find_file(data, folder)
    task, held = on_hub(name) if folder is None else on_files(name, data, folder, limit)
    found = run(model, name, task, limit)
    return {
        "source": str(files.taken[0]) if files else f"hub: {task.DATASET_PATH}",
        "files_left_out": files.left_out if files else {},
        "rows": min(held, limit or held),
        "rows_held": held,
        "as_in_the_paper": held == data.rows and (limit is None or limit >= held),
        "seconds": perf_counter() - start,
        "task_version": task.VERSION,
        **found,
    }


def run(model: LM, name: str, task: Task, limit: int | None) -> dict[str, dict[str, float | None]]:
    """lm-eval's `simple_evaluate` without examples, but for what it tells of the machine: it runs `git` and `pip`."""
    task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(SEED)
    call: Any = lm_evaluate  # whose decorator hides what it takes
    loaded = {"tasks": {name: task}, "groups": {}}
    result = call(model, loaded, limit=limit, bootstrap_iters=RESAMPLES, log_samples=False)
    assert result is not None  # there is one process
    return numbers(result["results"][name])


def on_hub(name: str) -> tuple[Task, int]:
    """lm-eval's task by this name, and how many rows it has."""
    check_available(task_file(name)["dataset_path"])
    task = tasks().load([name])["tasks"][name]
    return task, len(task.eval_docs)


def on_files(name: str, data: Set, folder: Path, limit: int | None) -> tuple[Task, int]:
    """The same with the rows of a folder, the first ones if there is a limit: some tasks prepare all they get."""
    rows = read_rows(data, folder)
    used = {data.split: Dataset.from_list(rows[:limit])}
    named = dict.fromkeys(("training_split", "validation_split", "test_split")) | {f"{data.split}_split": data.split}
    replaced = {"task": name, "custom_dataset": lambda **_: used, **named}
    return tasks().load([{"group": "local", "task": [replaced]}])["tasks"][name], len(rows)


def task_file(name: str) -> dict[str, Any]:
    """lm-eval's file of a task, but for functions: LongBench's need packages that our metrics do without."""
    entry = tasks().task_index.get(name)
    if entry is None or entry.yaml_path is None:
        raise ValueError(f"lm-eval has no task {name}, expected lm-eval 0.4.13 or later")
    return load_yaml(entry.yaml_path, resolve_func=False)


class Recipe(NamedTuple):
    """What lm-eval's file of a task says: where its rows are on the hub, how they become prompts, how to complete."""

    dataset: str
    name: str | None
    split: str
    fill: Callable[[Row], str]
    sampling: Sampling
    version: float


def recipe(task: str) -> Recipe:
    found = task_file(task)
    return Recipe(
        found["dataset_path"],
        found.get("dataset_name"),
        found["test_split"],
        lambda row: apply_template(found["doc_to_text"], row),
        sampling_of(found["generation_kwargs"]),
        found["metadata"]["version"],
    )


@cache
def tasks() -> TaskManager:
    """It reads thousands of files."""
    return TaskManager()


def numbers(result: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """{"acc,none": …, "acc_stderr,none": …} apart."""
    scores, errors = {}, {}
    for key, value in result.items():
        metric = key.removesuffix(",none")
        if not isinstance(value, int | float | str) or metric == key:
            continue
        number = None if isinstance(value, str) else float(value)  # "N/A"
        if metric.endswith("_stderr"):
            errors[metric.removesuffix("_stderr")] = number
        else:
            scores[metric] = number
    return {"scores": scores, "stderr": errors}
