"""Which start trains best: small models of every architecture on real text, by start and seed.

    gdn tokenizer train articles.jsonl.gz --vocab-size 2048 --out bpe.json
    gdn data prepare articles.jsonl.gz --tokenizer bpe.json --out texts
    python tools/starts.py --data texts --starts width gpt2 "out 0" "out 1"
    python tools/starts.py                                                        # only the tables

A cell is one run, one thread; what is in the file is not run again, so the command can be stopped and given again.
"out 0": `out_proj` starts at so many times torch's start, divided by √branches. "before": as an earlier commit does,
in an environment of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SETTINGS = {"length": 512, "batch_tokens": 4096, "micro_rows": 8, "validate_every": 10**6}
SETTINGS |= {"sample_tokens": 0, "checkpoint_every": 10**6, "validate_tokens": 300_000}


class Cell(NamedTuple):
    architecture: str
    size: str
    tokens: str
    start: str  # "before", "gpt2", "width", or "out 0.2": width with another start of out_proj
    seed: int
    dtype: str = "float32"


def train_cell(cell: Cell, data: str) -> dict[str, Any]:
    """One run, in this process."""
    import torch

    from gated_deltanet.train import metrics, resolve, train

    torch.set_num_threads(1)
    settings = SETTINGS | {"data": data, "tokenizer": data, "seed": cell.seed, "tokens": cell.tokens}
    settings["dtype"] = cell.dtype
    name, _, share = cell.start.partition(" ")
    if name == "out":
        from gated_deltanet.models import start

        start.OUT = float(share)
    elif name != "before":
        settings["start"] = name
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(resolve(f"{cell.architecture}-{cell.size}", None, settings), Path(folder) / "run", quiet=True)
        parameters = json.loads((Path(folder) / "run" / "run.json").read_text())["parameters"]
        records = metrics.read(Path(folder) / "run" / metrics.FILE)
    (bits,) = [record["valid_bits_per_byte"] for record in records if "valid_bits_per_byte" in record]
    losses = [record["loss"] for record in records if "loss" in record]
    return {
        "bits_per_byte": bits,
        "losses": [round(statistics.mean(part), 4) for part in percents(losses) if part],
        "unigram": unigram_entropy(data),
        "parameters": parameters,
        "seconds": round(time.perf_counter() - began),
    }


def percents(values: list[float]) -> list[list[float]]:
    """A hundred parts, nearly equal."""
    ends = [round(len(values) * i / 100) for i in range(101)]
    return [values[begin:end] for begin, end in pairwise(ends)]


def unigram_entropy(data: str) -> float:
    """Of the training tokens, in nats: the loss of who knows how frequent they are, and nothing else."""
    from gated_deltanet.data.shards import open_corpus

    corpus = open_corpus(data)
    counts = sum(np.bincount(corpus.tokens(i), minlength=corpus.vocab_size) for i in set(corpus.shard.tolist()))
    shares = (counts / np.sum(counts))[counts > 0]
    return float(-np.sum(shares * np.log(shares)))


def run_cell(cell: Cell, args: argparse.Namespace) -> None:
    """In a process of its own, whose result is one more line of the file."""
    python = args.before if cell.start == "before" else sys.executable
    command = [python, __file__, "--data", args.data, "--cell", json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{cell} failed:\n{done.stderr[-2000:]}")
    with args.cells.open("a") as file:
        file.write(json.dumps(cell._asdict() | json.loads(done.stdout)) + "\n")


def read_cells(file: Path) -> dict[Cell, dict[str, Any]]:
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {Cell(**{name: line[name] for name in Cell._fields if name in line}): line for line in lines}


def table(cells: dict[Cell, dict[str, Any]], size: str, tokens: str, dtype: str) -> str:
    """Bits per byte of validation by architecture and start: the mean over seeds, and half the range."""
    found = [cell for cell in cells if (cell.size, cell.tokens, cell.dtype) == (size, tokens, dtype)]
    starts = list(dict.fromkeys(cell.start for cell in found))
    lines = [f"{size}, {tokens} tokens, {dtype}", "", f"| | {' | '.join(starts)} |", "|---" * (len(starts) + 1) + "|"]
    for name in dict.fromkeys(cell.architecture for cell in found):
        of_start = [[cells[c] for c in found if (c.architecture, c.start) == (name, start)] for start in starts]
        lines.append(f"| {name} | {' | '.join(map(summary, of_start))} |")
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> str:
    if not results:
        return "–"
    bits = [result["bits_per_byte"] for result in results]
    left = max(percent_above_unigram(result) for result in results)
    spread = f" ± {(max(bits) - min(bits)) / 2:.3f}" if len(bits) > 1 else ""
    return f"{statistics.mean(bits):.3f}{spread} ({left} %)"


def percent_above_unigram(result: dict[str, Any]) -> int:
    """Of the steps: how long the loss was not below the unigram entropy."""
    return next((i for i, loss in enumerate(result["losses"]) if loss < result["unigram"]), 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of prepared texts; without it nothing is run")
    parser.add_argument("--cells", type=Path, default=Path("results/starts.jsonl"), help="file of the results")
    parser.add_argument("--architectures", nargs="+", help="without them the paper's ten")
    parser.add_argument("--size", default="nano")
    parser.add_argument("--tokens", default="4M")
    parser.add_argument(
        "--dtype", default="float32", help="float32, or bfloat16: quicker where there are instructions for it"
    )
    parser.add_argument("--starts", nargs="+", default=["width"], help="before, gpt2, width, or 'out SHARE'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--before", help="python of an environment that has an earlier commit, for the start before")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(train_cell(Cell(*json.loads(args.cell)), args.data)))
        return
    if args.data:
        known = read_cells(args.cells)
        from gated_deltanet.models.presets import PAPER

        every = product(args.seeds, args.starts, args.architectures or PAPER)
        todo = [Cell(name, args.size, args.tokens, start, seed, args.dtype) for seed, start, name in every]
        run_all([cell for cell in todo if cell not in known], args)
    cells = read_cells(args.cells)
    kinds = dict.fromkeys((cell.size, cell.tokens, cell.dtype) for cell in cells)
    print("\n\n".join(table(cells, *kind) for kind in kinds))


def run_all(todo: list[Cell], args: argparse.Namespace) -> None:
    began = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        for i, _ in enumerate(pool.map(lambda cell: run_cell(cell, args), todo), 1):
            left = (time.perf_counter() - began) / i * (len(todo) - i) / 60
            print(
                f"{i} of {len(todo)}: {' '.join(map(str, todo[i - 1]))}, about {left:.0f} minutes left", file=sys.stderr
            )


if __name__ == "__main__":
    main()
