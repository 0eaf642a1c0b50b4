"""Runs that take a second: a few short texts, a small batch."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch

from gated_deltanet.ops import native
from gated_deltanet.train.loop import learn
from gated_deltanet.train.metrics import FILE, jsonl
from gated_deltanet.train.parallel import Place
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.run import Run, restore, start

HERE = Place(torch.device("cpu"))
COMMAND = Path(__file__).parent / "gdn_command.py"
WORDS = ("the", "state", "forgets", "what", "α", "says", "and", "writes", "what", "β", "says", "under", "key", "k")
VALUES = {
    "valid": 0.2,
    "length": 48,
    "batch_tokens": 192,
    "micro_rows": 4,
    "tokens": 192 * 10,
    "warmup_tokens": 192 * 3,
    "dtype": "float32",
    "validate_every": 5,
    "checkpoint_every": 2,
    "sample_tokens": 4,
}


def write_texts(folder: Path, n: int = 40) -> Path:
    """Documents of unequal length."""
    draw = random.Random(0)
    folder.mkdir()
    for i in range(n):
        (folder / f"{i:02}.txt").write_text(" ".join(draw.choices(WORDS, k=draw.randrange(2, 60))))
    return folder


def small_recipe(data: Path, preset: str | None = "gdn-nano", **changes):
    return resolve(preset, None, VALUES, {"data": str(data), **changes})


def trained(run: Run) -> Run:
    """To the end, with its metrics in the run's folder, as `gdn train` does it."""
    with jsonl(run.folder / FILE) as write:
        return learn(run, [write])


def run_to_end(data: Path, folder: Path, **changes) -> Run:
    return trained(start(small_recipe(data, **changes), folder, HERE))


def resume_to_end(folder: Path, **changes) -> Run:
    return trained(restore(folder, HERE, changes))


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records(folder) if "loss" in record]


def learnt(folder: Path) -> list[dict]:
    """All that must be the same when a run is repeated: everything but the time it took."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records(folder)]


def options(**values) -> list[str]:
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def gdn(*args: object) -> list[str]:
    """The command in a process of its own, with the kernels that the tests use."""
    return [sys.executable, str(COMMAND), str(native.instruction_set()), *map(str, args)]


def torchrun(ranks: int, *args: object) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *map(str, args)]


def call(command: list[str], **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, **kwargs)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
