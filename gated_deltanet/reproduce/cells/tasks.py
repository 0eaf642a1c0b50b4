"""Small models on synthetic tasks: rewritten keys, state tracking, and MQAR with three sizes of state."""

from pathlib import Path
from typing import Any, NamedTuple

from gated_deltanet.models import ModelConfig
from gated_deltanet.synthetic import mqar, suite
from gated_deltanet.synthetic.models import STATES, architecture
from gated_deltanet.synthetic.tasks import SCORED, TASKS, Task

from ..scales import Scale
from . import described

MODELS = {  # of each task
    "rewriting": ("gdn", "deltanet", "longhorn", "mamba2", "retnet", "linear-attention"),
    "parity": ("n_h = 1, β ≤ 1", "n_h = 1, β ≤ 2"),
    "s3": ("n_h = 1, β ≤ 2", "n_h = 2, β ≤ 1", "n_h = 2, β ≤ 2"),
    "s5": ("n_h = 1, β ≤ 2", "n_h = 4, β ≤ 1", "n_h = 4, β ≤ 2"),
}
MQAR_MODELS = ("gdn", "deltanet", "mamba2", "retnet")
MQAR_STATES = tuple(STATES)
MQAR_RATES = (1e-3, 3e-3, 1e-2)
MQAR_STEPS = 2000
MQAR_PAIRS = (4, 4, 8, 8, 16, 16, 32, 64)  # in turn: with many pairs only, nobody learns to recall any
PAIRS = 64


class TaskCell(NamedTuple):
    task: str
    model: str
    seed: int

    @property
    def system(self) -> str:
        return f"{self.task}: {self.model}"

    @property
    def threads(self) -> int:
        return 1

    def config(self) -> ModelConfig:
        return suite.Cell(self.task, self.model).config()

    def settings(self, scale: Scale) -> dict[str, Any]:
        return trained(TASKS[self.task], self.config())

    def tokens(self, scale: Scale) -> int:
        return 0

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        return result(scored(suite.measure_model(self.config(), TASKS[self.task], self.seed), self))


class MqarCell(NamedTuple):
    """The best of three learning rates, chosen on other rows than those that are scored."""

    model: str
    state: int  # numbers a layer
    seed: int

    @property
    def system(self) -> str:
        return f"mqar: {self.model}; {self.state}"

    @property
    def threads(self) -> int:
        return 1

    def config(self) -> ModelConfig:
        return architecture(self.model, mqar.vocab_size(PAIRS), self.state)

    def settings(self, scale: Scale) -> dict[str, Any]:
        return trained(mqar_task(MQAR_RATES[0]), self.config()) | {"rates": MQAR_RATES}

    def tokens(self, scale: Scale) -> int:
        return 0

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        found = {rate: suite.measure_model(self.config(), mqar_task(rate), self.seed) for rate in MQAR_RATES}
        learnt = {rate: each for rate, each in found.items() if "left_out" not in each}
        best = max(learnt, key=lambda rate: learnt[rate]["checked"], default=MQAR_RATES[0])
        kept = result(scored(found[best], self))
        kept["measures"] |= {"rate": best, "by_rate": {str(rate): each["accuracy"] for rate, each in learnt.items()}}
        return kept | {"seconds": {"training": round(sum(each["seconds"] for each in found.values()))}}


def mqar_task(rate: float) -> Task:
    """Up to 64 pairs, more than fit in the smallest states."""
    return TASKS["mqar"]._replace(
        vocab_size=mqar.vocab_size(PAIRS),
        chance=1 / PAIRS,
        trained=MQAR_PAIRS,
        scored=(16, 32, 64),
        train=lambda generator, pairs: mqar.mqar(generator, 256 // pairs, pairs, PAIRS),
        score=lambda generator, pairs: mqar.mqar(generator, SCORED, pairs, PAIRS),
        peak_lr=rate,
        steps=MQAR_STEPS,
    )


def trained(task: Task, config: ModelConfig) -> dict[str, Any]:
    levels = {
        "task": task.title,
        "trained": task.trained,
        "scored": task.scored,
        "steps": task.steps,
        "peak_lr": task.peak_lr,
    }
    return levels | {"model": described(config)}


def scored(found: dict[str, Any], cell: TaskCell | MqarCell) -> dict[str, Any]:
    """Or it has diverged, which is no score of 0."""
    if "left_out" in found:
        raise ValueError(f"{cell.system}, seed {cell.seed}, has no score: {found['left_out']}")
    return found


def result(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters": found["parameters"],
        "state_bytes": found["state_bytes"],
        "measures": {name: found[name] for name in ("accuracy", "points", "steps")},
        "seconds": {"training": round(found["seconds"])},
    }
