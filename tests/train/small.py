"""Runs that take a second: a few short texts, a small batch."""

import json
import multiprocessing
import random
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import gdn_command
import torch

from gated_deltanet.ops import native
from gated_deltanet.train.loop import learn
from gated_deltanet.train.metrics import FILE, jsonl
from gated_deltanet.train.parallel import Place
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.run import Run, restore, start

HERE = Place(torch.device("cpu"))
FORKS = multiprocessing.get_context("forkserver")
if sys.platform == "linux":  # elsewhere a process that has loaded torch had better not fork
    FORKS.set_forkserver_preload(["gated_deltanet.cli.train", "gated_deltanet.train", "torch._dynamo"])
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
    """The command, with the kernels that the tests use."""
    return [sys.executable, gdn_command.__file__, str(native.instruction_set()), *map(str, args)]


def start_gdn(*args: object, said: Path) -> BaseProcess:
    """The command in a process of its own, forked from one that has imported everything. said: for what it prints."""
    arguments = (list(map(str, args)), str(native.instruction_set()), torch.get_num_threads(), said)
    process = FORKS.Process(target=gdn_command.run_forked, args=arguments)
    process.start()
    return process


def torchrun(ranks: int, *args: object) -> None:
    """The script and its arguments in so many processes, to the end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*command, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
