"""`gdn reproduce`: the paper's claims, tested on this machine."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Reproduce:
    """Put the paper's claims to the test with small models that a laptop trains.

    A claim says that one system is better than another. Both are trained several times, with the same seeds, and the
    differences decide: reproduced, contradicted, no difference, or cannot be told at this scale. The rule stands in
    gated_deltanet/reproduce/verdicts.py. A run that is in the folder is not run again; one that was stopped goes on.

    TARGET is table1, table2, table3, table4, table5, fig2, tableS1, tableS2, tracking or all.

    Example: gdn reproduce table3 --plan
    """

    target: Positional[Annotated[str, arg(metavar="TARGET")]] = "all"
    """Test the claims of this table or figure."""
    data_dir: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(nothing is run)")] = None
    """Train and measure on the texts and data sets in this folder; docs/evaluation.md says which."""
    out: Path = Path("results/reproduce")
    """Keep what was measured, the verdicts and their page in this folder."""
    work: Path = Path("runs/reproduce")
    """Keep texts and models in this folder while they are needed."""
    jobs: int = 1
    """Make so many runs side by side, one thread each."""
    plan: bool = False
    """Only tell how many runs there are and how long they will take."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"--jobs is {self.jobs}, expected 1 or more")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise ValueError(f"--data-dir is {self.data_dir}, expected a folder")
        show_plan(self) if self.plan else judge(self)


def show_plan(asked: Reproduce) -> None:
    from gated_deltanet.cli.output import print_json, print_table
    from gated_deltanet.reproduce import CELLS, LAPTOP, experiment

    targets = experiment.TARGETS if asked.target == "all" else (asked.target,)
    plans = {name: experiment.plan(name, LAPTOP, asked.out / CELLS) for name in dict.fromkeys((*targets, asked.target))}
    if asked.json:
        return print_json([{"target": name, **each._asdict()} for name, each in plans.items()])
    rows = [
        [name, each.cells, each.done, f"{each.tokens / 1e6:.0f} M", f"{each.seconds / 3600 / asked.jobs:.1f}"]
        for name, each in plans.items()
    ]
    notes = [
        f"Hours with --jobs {asked.jobs}, by what runs took so far, else ten minutes each. Tables 2 to 5 and Fig. 2 "
        "share their runs.",
        f"Disk: {plans[asked.target].bytes / 1e9:.1f} GB in {asked.work} until it is deleted.",
    ]
    print_table("Runs", ["target", "runs", "done", "tokens left", "hours left"], rows, notes)


def judge(asked: Reproduce) -> None:
    from gated_deltanet.cli.output import print_json, print_table
    from gated_deltanet.reproduce import PAGE, reproduce

    judged = reproduce(
        asked.target,
        data_dir=asked.data_dir,
        out=asked.out,
        work=asked.work,
        jobs=asked.jobs,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    judged = [claim for claim in judged if asked.target in ("all", claim["target"])]
    if asked.json:
        return print_json([dict(claim) for claim in judged])
    rows = [
        [claim["target"], claim["claim"], claim["number"], claim["verdict"] or "not yet judged"] for claim in judged
    ]
    page = asked.out / PAGE
    notes = [f"With all numbers: {page}"] if page.exists() else ["Nothing has been run: see --data-dir."]
    print_table("Claims of the paper", ["target", "claim", "by", "verdict"], rows, notes)
