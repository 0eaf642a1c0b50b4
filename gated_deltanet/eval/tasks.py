"""lm-eval's tasks on rows of ours or of the hub, one at a time. Needs lm-eval."""

import logging
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from datasets import Dataset, disable_progress_bars  # pyright: ignore[reportMissingImports]
from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.task import Task  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from .sets import Set, read_rows

SEED = 1234
RESAMPLES = 1000  # for the standard error of a perplexity


def evaluate(model: LM, name: str, data: Set, folder: Path | None, *, limit: int | None) -> dict[str, Any]:
    """The scores of one task. folder: of local files; None: the hub."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    disable_progress_bars()
    start = perf_counter()
    task, held = on_hub(name) if folder is None else on_files(name, data, folder, limit)
    run: Any = simple_evaluate  # whose decorator hides what it takes
    result = run(
        model,
        tasks=[task],
        num_fewshot=0,
        limit=limit,
        bootstrap_iters=RESAMPLES,
        log_samples=False,
        task_manager=tasks(),
        random_seed=SEED,
        numpy_random_seed=SEED,
        torch_random_seed=SEED,
    )
    assert result is not None  # there is one process
    return {
        "source": str(folder / data.file) if folder else f"hub: {task.DATASET_PATH}",
        "rows": min(held, limit or held),
        "rows_held": held,
        "as_in_the_paper": held == data.rows and (limit is None or limit >= held),
        "seconds": perf_counter() - start,
        "task_version": task.VERSION,
        **numbers(result["results"][name]),
    }


def on_hub(name: str) -> tuple[Task, int]:
    """lm-eval's task by this name, and how many rows it has."""
    task = tasks().load([name])["tasks"][name]
    return task, len(task.eval_docs)


def on_files(name: str, data: Set, folder: Path, limit: int | None) -> tuple[Task, int]:
    """The same with the rows of a folder, the first ones if there is a limit: some tasks prepare all they get."""
    rows = read_rows(data, folder)
    used = {data.split: Dataset.from_list(rows[:limit])}
    named = dict.fromkeys(("training_split", "validation_split", "test_split")) | {f"{data.split}_split": data.split}
    replaced = {"task": name, "custom_dataset": lambda **_: used, **named}
    return tasks().load([{"group": "local", "task": [replaced]}])["tasks"][name], len(rows)


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
