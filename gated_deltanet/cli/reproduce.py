"""`gdn reproduce`: the paper's claims, tested on this machine."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Reproduce:
    """Put the paper's claims to the test with small models that a laptop trains.

    A claim says that one system is better than another. Both are trained several times, with the same seeds, and the
    differences decide: reproduced, contradicted, no difference, or cannot be told at this scale. The rule stands in
    gated_deltanet/reproduce/verdicts.py. A run that is in the folder is not run again; one that was stopped goes on.

    TARGET is table1, table2, table3, table4, table5, fig2, fig3, tableS1, tableS2, tracking or all; or pilot, which
    finds the learning rates.

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
    scale: Literal["laptop", "400m", "1.3b"] = "laptop"
    """Train models of this size; beyond a laptop's by the paper's recipe, on all GPUs, one run after the other."""
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
        if self.target == "pilot":
            find_rates(self)
        elif self.plan:
            show_plan(self)
        else:
            judge(self)


def find_rates(asked: Reproduce) -> None:
    from gated_deltanet.cli.output import print_json, print_table
    from gated_deltanet.reproduce.pilot import ASKED, PAGE, pilot

    if asked.data_dir is None:
        raise ValueError("--data-dir is not given, expected the folder of texts on which the pilot trains")
    told = pilot(asked.data_dir, out=asked.out / "pilot", work=asked.work / "pilot", jobs=asked.jobs, tell=say)
    if asked.json:
        return print_json(told)
    for what, each in ASKED.items():
        rates, tried = told[what]["rates"], told[what]["tried"]
        titles = [number.title for number in each.choosing]
        rows = [[name, f"{rate:g}", *(f"{tried[name][rate][t]:.4f}" for t in titles)] for name, rate in rates.items()]
        print_table(f"Learning rates: {each.title}", ["system", "best rate", *titles], rows, [])
    rows = [[name, title, f"{value:.3f}"] for name, found in told["whole"].items() for title, value in found.items()]
    print_table("What a run of text measures", ["system", "number", "value"], rows, [])
    rows = [[pair, f"{half:.4f}"] for pair, half in told["spread"].items()]
    notes = [f"All that was tried: {asked.out / 'pilot' / PAGE}"]
    print_table("Differences of validation loss that all seeds will tell", ["pair", "at least"], rows, notes)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_plan(asked: Reproduce) -> None:
    from gated_deltanet.cli.output import print_json, print_table
    from gated_deltanet.reproduce import CELLS, SCALES, experiment

    scale, out = SCALES[asked.scale], folder_of(asked)
    targets = experiment.TARGETS if asked.target == "all" else (asked.target,)
    plans = {name: experiment.plan(name, scale, out / CELLS) for name in dict.fromkeys((*targets, asked.target))}
    if asked.json:
        return print_json([{"target": name, **each._asdict()} for name, each in plans.items()])
    rows = [
        [
            name,
            each.cells,
            each.done,
            each.left,
            f"{each.tokens / 1e6:.0f} M",
            f"{each.seconds / 3600 / asked.jobs:.1f}",
        ]
        for name, each in plans.items()
    ]
    notes = commands(asked) if scale.recipe else laptop_notes(asked, plans[asked.target].bytes)
    print_table("Runs", ["target", "at most", "done", "next", "tokens", "hours"], rows, notes)


def laptop_notes(asked: Reproduce, n_bytes: int) -> list[str]:
    from gated_deltanet.reproduce.verdicts import CLOSE_LOOKS, LOOKS

    return [
        f"Tokens and hours, with --jobs {asked.jobs}, are of the runs that come next, by what others took, else ten "
        "minutes each. Tables 3, 4 and Fig. 2 share runs, and so do tables 4 and 5.",
        f"First {LOOKS[0]} seeds of each system are looked at ({CLOSE_LOOKS[0]} of Gated DeltaNet and Mamba2); "
        "only systems that these do not tell apart get as many again.",
        f"Disk: {n_bytes / 1e9:.1f} GB in {asked.work} until it is deleted.",
    ]


def commands(asked: Reproduce) -> list[str]:
    """Of training by the paper's recipe, as they will be run."""
    from gated_deltanet.reproduce import CELLS, SCALES, experiment
    from gated_deltanet.reproduce.cells.text import TextCell, command

    scale, data_dir = SCALES[asked.scale], asked.data_dir or Path()
    left = experiment.left(asked.target, scale, folder_of(asked) / CELLS)
    texts = [cell for cell in left if isinstance(cell, TextCell)]
    return [" ".join(command(cell, scale, data_dir, asked.work)) for cell in texts]


def folder_of(asked: Reproduce) -> Path:
    """Results of another scale than a laptop's have a folder of their own."""
    return asked.out if asked.scale == "laptop" else asked.out / asked.scale


def judge(asked: Reproduce) -> None:
    from gated_deltanet.cli.output import print_json, print_table
    from gated_deltanet.reproduce import PAGE, SCALES, reproduce

    judged = reproduce(
        asked.target,
        data_dir=asked.data_dir,
        out=folder_of(asked),
        work=asked.work,
        jobs=asked.jobs,
        scale=SCALES[asked.scale],
        tell=say,
    )
    judged = [claim for claim in judged if asked.target in ("all", claim["target"])]
    if asked.json:
        return print_json([dict(claim) for claim in judged])
    rows = [
        [claim["target"], claim["claim"], claim["number"], claim["verdict"] or "not yet judged"] for claim in judged
    ]
    page = folder_of(asked) / PAGE
    notes = [f"With all numbers: {page}"] if page.exists() else ["Nothing has been run: see --data-dir."]
    print_table("Claims of the paper", ["target", "claim", "by", "verdict"], rows, notes)
