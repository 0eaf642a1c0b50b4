"""`gdn demo`: the main job."""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg


@dataclass(frozen=True)
class Demo:
    """Train a small Gated DeltaNet on the Python standard library, and show what it learned.

    It needs nothing but the package. At the end there is a model to play with, and a report to open in a browser: how
    well it predicts code it has not seen, beside gzip and an n-gram, a sample, and what its gates do.

    Example: gdn demo --minutes 1
    """

    minutes: float = 2.5
    """Train for about so many minutes."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(runs/demo, or the next free one)")] = None
    """Write the run to this folder."""
    json: bool = False
    """Print the results as one JSON document."""

    def run(self) -> int | None:
        from gated_deltanet.cli.output import print_json
        from gated_deltanet.demo import job

        if not 0 < self.minutes < 1e6:
            raise ValueError(f"--minutes is {self.minutes}, expected more than 0")
        folder = self.out or free(Path("runs") / "demo")
        run = job.train(folder, self.minutes)
        if run.counters.step < run.recipe.steps:
            return 130  # somebody pressed Ctrl-C
        result = job.conclude(run, commands(folder))
        if self.json:
            return print_json({**vars(result), "report": str(result.report)})
        show(result, commands(folder))
        return None


def free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that nobody has used."""
    names = chain([folder], (folder.with_name(f"{folder.name}-{i}") for i in count(2)))
    return next(name for name in names if not name.exists())


def commands(folder: Path) -> list[str]:
    return [
        f"gdn generate {folder} --prompt 'class Stack:' --temperature 0.7",
        f"gdn inspect {folder} --text 'for i in range(10): print(i)' --out gates.html",
        "gdn train gdn-tiny --tokens 5M --out runs/tiny",
    ]


def show(result: Any, commands: list[str]) -> None:
    from gated_deltanet.cli.output import print_table

    print("\n".join(f"{name}: {value}" for name, value in result.facts.items()))
    rows = [[who, f"{bits:.3f}"] for who, bits in result.bits.items()]
    print_table("Python code it has not seen", ["", "bits per byte"], rows)
    print(f"\n{result.sample}\n\nThe report: {result.report}\nTry next:")
    print("\n".join(f"  {command}" for command in commands))
