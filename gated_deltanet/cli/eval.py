"""`gdn eval`: a suite of benchmarks, its table and its files."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Eval:
    """Evaluate a model as the paper does: its table, with the paper's numbers beside ours.

    The data come from a folder of files (--data-dir). Without one commonsense takes the Hugging Face hub's, the other
    suites what needs no files. A set that cannot be had is reported and left out. --out writes a JSON document, a
    Markdown table and a picture, and keeps every answer: an evaluation that was killed goes on where it was.

    Example: gdn eval runs/tiny --suite commonsense --data-dir data --limit 200 --out results/tiny
    """

    checkpoint: Positional[str]
    """The folder of a model; for commonsense also the name of any causal language model on the Hugging Face hub."""
    suite: str = "commonsense"
    """commonsense (table 3), extrapolation (Fig. 2) or needle (table 2)."""
    data_dir: Path | None = None
    """The folder that holds the data sets, each in a folder of its own: piqa/validation.jsonl.gz, …"""
    limit: int | None = None
    """The first rows of each set, the longest documents of each corpus, or needles of each length (otherwise 500)."""
    max_length: int | None = None
    """Tokens the model is shown: 2048 unless the model names its own, as in lm-eval; for extrapolation 20480."""
    lengths: tuple[str, ...] = ("1K", "2K", "4K", "8K")
    """Of haystacks, in tokens."""
    unshared: bool = False
    """Commonsense: read what a question's options have in common once for each: slower, the same scores."""
    json: bool = False
    """Print one JSON document instead of a table."""
    out: Path | None = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.cli import results
        from gated_deltanet.cli.report import print_json, print_table
        from gated_deltanet.cli.suites import SUITES
        from gated_deltanet.cli.suites.report import write

        check(self)
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        document = results.begin({name: str(x) if isinstance(x, Path) else x for name, x in asdict(self).items()})
        report = SUITES[self.suite](self, document)
        if self.out:
            write(self.out, self.suite, document, report)
        if self.json:
            return print_json(document)
        print_table(*report.screen, notes=report.notes)


def check(options: Eval) -> None:
    """Before the work, whose result would be lost."""
    from gated_deltanet.cli.suites import SUITES
    from gated_deltanet.naming import unknown

    if options.suite not in SUITES:
        raise unknown("--suite", options.suite, SUITES)
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit is {options.limit}, expected at least 1")
    if options.max_length is not None and options.max_length < 2:
        raise ValueError(f"--max-length is {options.max_length}, expected at least 2")
    if options.data_dir and not options.data_dir.is_dir():
        raise ValueError(f"--data-dir is {options.data_dir}, expected a folder")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out is {options.out}, expected a folder")
