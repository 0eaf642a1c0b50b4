"""`gdn train`: a model learns, and can be interrupted."""

import sys
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any
from warnings import catch_warnings, simplefilter

from tyro.conf import Positional, UseAppendAction, arg

from gated_deltanet.train.recipe import Recipe, meanings, read_settings

METAVARS = {int: "N", float: "X", str: "TEXT", bool: "True|False"}
NAMED = {"model": "FILE", "init": "FOLDER", "data": "SOURCE", "tokenizer": "NAME"}


def option(setting: Any) -> tuple[str, Any, None]:
    """A setting of the recipe that may be left to it. Whole numbers are read as text: 100B."""
    kind = str if setting.type is int else setting.type
    metavar = NAMED.get(setting.name, METAVARS[setting.type])
    shown = arg(help=meanings()[setting.name], metavar=metavar, help_behavior_hint="(the recipe's)")
    return setting.name, Annotated[kind | None, shown], None


def change(setting: Any) -> tuple[str, Any, tuple[str, ...]]:
    """The option --set, which may be given several times."""
    shown = arg(help=meanings()[setting.name], metavar="NAME=VALUE", help_behavior_hint="(several: --set again)")
    return setting.name, Annotated[tuple[str, ...], UseAppendAction, shown], ()


SETTINGS = [change(each) if each.name == "set" else option(each) for each in fields(Recipe) if each.name != "preset"]
Settings = make_dataclass("Settings", SETTINGS, frozen=True)


@dataclass(frozen=True)
class Train:
    """Train a model, with checkpoints, validation, samples, and a folder that holds all of it.

    Ctrl-C saves and stops; --resume DIR goes on as if nothing had happened. Each size of model has a recipe of its
    own; --recipe names another, --config FILE changes settings, and what is given here counts most. On several
    processes: torchrun --nproc-per-node 8 -m gated_deltanet train ….

    A model of one's own is a preset with --set NAME=VALUE, or a file: --model FILE. --init FOLDER goes on from the
    weights of a model, with its tokenizer, a new optimizer and a new schedule.

    Example: gdn train gdn-tiny --tokens 5M --out runs/first
    """

    preset: Positional[Annotated[str | None, arg(metavar="PRESET", help_behavior_hint="")]] = None
    """The model: a name that gdn presets lists."""
    recipe: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(that of the model's size)")] = None
    """Take this recipe: paper-1.3b, paper-400m, paper-500m, small, tiny or nano."""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Read settings from a TOML file, such as the recipe.toml of another run."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(runs/PRESET)")] = None
    """Write the run to this folder."""
    resume: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Go on with the run in this folder."""
    settings: Settings = field(default_factory=Settings)  # pyright: ignore[reportInvalidTypeForm]
    """Settings that differ from the recipe. Whole numbers may be written 4K or 100B."""

    def run(self) -> int | None:
        with catch_warnings():
            simplefilter("default", UserWarning)  # each one once
            return conclude(train(self))


def train(options: Train) -> Any:
    """The run to its end, or until somebody asks to stop."""
    from gated_deltanet.train import resolve, resume, train

    given = {name: value for name, value in vars(options.settings).items() if value not in (None, ())}
    if options.resume:
        if options.preset or options.recipe or options.config or options.out:
            raise ValueError("--resume goes on with the run as it is, expected no preset, --recipe, --config or --out")
        return resume(options.resume, given)
    layers = [read_settings(options.config)] if options.config else []
    recipe = resolve(options.preset, options.recipe, *layers, given)
    return train(recipe, options.out or Path("runs") / recipe.name)


def conclude(outcome: Any) -> int | None:
    """Say what comes next, once."""
    if outcome.rank:
        return None
    if not outcome.finished:
        step, folder = outcome.counters.step, outcome.folder
        print(f"stopped after step {step}; to go on: gdn train --resume {folder}", file=sys.stderr)
        return 130
    prompt, folder = outcome.recipe.sample_prompt, outcome.folder
    print(f"the model is in {folder}; to try it: gdn generate {folder} --prompt '{prompt}'")
    return None
