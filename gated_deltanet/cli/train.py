"""`gdn train`: a model learns, and can be interrupted."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any
from warnings import catch_warnings, simplefilter

from tyro.conf import Positional, arg

from gated_deltanet.train.recipe import Recipe
from gated_deltanet.train.toml import meanings

METAVARS = {int: "N", float: "X", str: "TEXT", bool: "True|False"}


def option(setting: Any) -> tuple[str, Any, None]:
    """A setting of the recipe that may be left to it. Whole numbers are read as text: 100B."""
    kind = str if setting.type is int else setting.type
    shown = arg(help=meanings()[setting.name], metavar=METAVARS[setting.type], help_behavior_hint="(the recipe's)")
    return setting.name, Annotated[kind | None, shown], None


Settings = make_dataclass("Settings", [option(each) for each in fields(Recipe) if each.name != "preset"], frozen=True)


@dataclass(frozen=True)
class Train:
    """Train a model, with checkpoints, validation, samples, and a folder that holds all of it.

    Ctrl-C saves and stops; --resume DIR goes on as if nothing had happened. Each size of model has a recipe of its
    own; --recipe names another, --config FILE changes settings, and what is given here counts most. On several
    processes: torchrun --nproc-per-node 8 -m gated_deltanet train ….

    Example: gdn train gdn-tiny --tokens 5M --out runs/first
    """

    preset: Positional[str | None] = None
    """The model: a name that gdn presets lists."""
    recipe: str | None = None
    """paper-1.3b, paper-400m, paper-500m, small, tiny or nano; default: that of the preset's size."""
    config: Path | None = None
    """A TOML file of settings, such as the recipe.toml of another run."""
    out: Path | None = None
    """The folder of the run; default: runs/PRESET."""
    resume: Path | None = None
    """Go on with the run in this folder."""
    settings: Settings = field(default_factory=Settings)  # pyright: ignore[reportInvalidTypeForm]
    """Of the recipe. Whole numbers may be written 4K or 100B."""

    def run(self) -> int | None:
        from gated_deltanet.train.parallel import processes

        with processes() as place, told_briefly(place.rank == 0):
            return train(self, place)


@contextmanager
def told_briefly(aloud: bool) -> Iterator[None]:
    """Warnings as one line each, of the first process only."""
    with catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print("gdn: warning:", message, file=sys.stderr)
        simplefilter("default" if aloud else "ignore", UserWarning)
        yield


def train(options: Train, place: Any) -> int | None:
    from gated_deltanet.train import loop, metrics
    from gated_deltanet.train.progress import progress

    run = open_run(options, place)
    if place.rank:
        loop.train(run)
        return None
    with (
        metrics.jsonl(run.folder / metrics.FILE) as to_file,
        metrics.tensorboard(run.folder / "tensorboard") as to_board,
        progress(run) as to_screen,
    ):
        run = loop.train(run, [to_file, to_board, to_screen])
    return conclude(run)


def open_run(options: Train, place: Any) -> Any:
    from gated_deltanet.train import run, toml
    from gated_deltanet.train.recipes import resolve

    given = {name: value for name, value in vars(options.settings).items() if value is not None}
    if options.resume:
        if options.preset or options.recipe or options.config or options.out:
            raise ValueError("--resume goes on with the run as it is, expected no preset, --recipe, --config or --out")
        return run.resume(options.resume, place, given)
    layers = [toml.read(options.config)] if options.config else []
    recipe = resolve(options.preset, options.recipe, *layers, given)
    return run.start(recipe, options.out or Path("runs") / recipe.preset, place)


def conclude(run: Any) -> int | None:
    """Say what comes next."""
    if run.counters.step < run.recipe.steps:
        print(f"stopped after step {run.counters.step}; to go on: gdn train --resume {run.folder}", file=sys.stderr)
        return 130
    print(f"the model is in {run.folder}; to try it: gdn generate {run.folder} --prompt '{run.recipe.sample_prompt}'")
    return None
