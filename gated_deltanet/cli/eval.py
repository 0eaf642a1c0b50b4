"""`gdn eval`: suites of benchmarks, their tables and files."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tyro.conf import Positional


@dataclass(frozen=True)
class Eval:
    """Evaluate a model as the paper does: its table, with the paper's numbers beside ours.

    The data come from a folder of files (--data-dir). Without one commonsense, recall and longbench take the Hugging
    Face hub's, the other suites what needs no files. A set that cannot be had is reported and left out. --out writes a
    JSON document, a Markdown table and a picture, and keeps every answer: an evaluation that was killed goes on where
    it was.

    Example: gdn eval runs/tiny --suite commonsense --data-dir data --limit 200 --out results/tiny
    """

    checkpoint: Positional[str]
    """The folder of a model, ours or Hugging Face's, or the name of a causal language model on its hub; for synthetic
    architectures such as gdn,mamba2,transformer."""
    suite: str = "commonsense"
    """commonsense (table 3), extrapolation (Fig. 2), needle (table 2), recall (table 4), longbench (table 5), several
    of them with commas, or all; or synthetic: small tasks that architectures are trained on, in minutes."""
    data_dir: Path | None = None
    """The folder that holds the data sets, each in a folder of its own: piqa/validation.jsonl.gz, …"""
    limit: int | None = None
    """The first rows of each set, the longest documents of each corpus, needles of each length (otherwise 500), or
    steps of training on each synthetic task."""
    max_length: int | None = None
    """Tokens the model is shown: 2048 unless the model names its own, as in lm-eval; for longbench 16384, for
    extrapolation 20480."""
    lengths: tuple[str, ...] = ("1K", "2K", "4K", "8K")
    """Of haystacks, in tokens."""
    device: str = "cpu"
    """Where the model runs, as torch names it: cpu, cuda, cuda:1, mps."""
    unshared: bool = False
    """Commonsense: read what a question's options have in common once for each: slower, the same scores."""
    json: bool = False
    """Print one JSON document instead of a table."""
    out: Path | None = None
    """Write the results to this folder."""

    def run(self) -> int | None:
        from gated_deltanet.cli.report import print_json, print_table
        from gated_deltanet.cli.suites.report import write_overview

        suites = suites_of(self.suite)
        check(self)
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        if len(suites) == 1:
            found, left_out = {suites[0]: evaluate(self, suites[0])}, {}
        else:
            from gated_deltanet.eval.attempts import attempts
            from gated_deltanet.eval.checkpoints import is_ours

            is_ours(self.checkpoint)  # or it raises, once for all suites
            found, left_out = attempts(suites, lambda name: evaluate(self, name))
            if self.out and found:
                write_overview(self.out, found, left_out)
        if self.json:
            documents = {name: document for name, (document, _) in found.items()}
            print_json(documents[suites[0]] if len(suites) == 1 else documents | {"left_out": left_out})
        else:
            for _, report in found.values():
                print_table(*report.screen, notes=report.notes)
        for name, reason in left_out.items():
            print(f"gdn: {name} was left out: {reason}", file=sys.stderr)
        return None if found else 1


def evaluate(options: Eval, suite: str) -> tuple[dict[str, Any], Any]:
    """The document of one suite and its report; with --out they are written."""
    from gated_deltanet.cli import results
    from gated_deltanet.cli.suites import SUITES
    from gated_deltanet.cli.suites.report import write

    options = replace(options, suite=suite)
    document = results.begin({name: str(x) if isinstance(x, Path) else x for name, x in asdict(options).items()})
    report = SUITES[suite](options, document)
    if options.out:
        write(options.out, suite, document, report)
    return document, report


def suites_of(names: str) -> list[str]:
    """By their names, with commas; all: those that evaluate a checkpoint."""
    from gated_deltanet.cli.suites import SUITES
    from gated_deltanet.naming import unknown

    if names == "all":
        return [name for name in SUITES if name != "synthetic"]
    found = names.split(",")
    for name in found:
        if name not in SUITES:
            raise unknown("--suite", name, [*SUITES, "all"])
    return list(dict.fromkeys(found))


def check(options: Eval) -> None:
    """Before the work, whose result would be lost."""
    from gated_deltanet.cli.loading import check_device

    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit is {options.limit}, expected at least 1")
    if options.max_length is not None and options.max_length < 2:
        raise ValueError(f"--max-length is {options.max_length}, expected at least 2")
    if options.data_dir and not options.data_dir.is_dir():
        raise ValueError(f"--data-dir is {options.data_dir}, expected a folder")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out is {options.out}, expected a folder")
    check_device(options.device)
