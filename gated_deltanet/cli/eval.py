"""`gdn eval`: suites of benchmarks, their tables and files."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from gated_deltanet.result import Result

SUITES = ("commonsense", "extrapolation", "needle", "recall", "longbench", "synthetic")


@dataclass(frozen=True)
class Eval:
    """Evaluate a model as the paper does: its table, with the paper's numbers beside ours.

    The data come from a folder of files (--data-dir). Without one commonsense, recall and longbench take the Hugging
    Face hub's, the other suites what needs no files. A set that is not available is reported and left out. --out writes
    a JSON document, a Markdown table and a figure, and keeps every answer: an evaluation that was killed goes on where
    it was.

    Example: gdn eval runs/tiny --suite commonsense --data-dir data --limit 200 --out results/tiny
    """

    checkpoint: Positional[Annotated[str, arg(metavar="MODEL")]]
    """The folder of a model, ours or Hugging Face's, or the name of a causal language model on its hub; for synthetic
    architectures such as gdn,mamba2,transformer."""
    suite: str = "commonsense"
    """Run commonsense (table 3), extrapolation (Fig. 2), needle (table 2), recall (table 4), longbench (table 5),
    several of them with commas, or all; or synthetic: small tasks that architectures are trained on, in minutes."""
    data_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Read the data sets from this folder, each in a folder of its own: piqa/validation.jsonl.gz, …"""
    limit: Annotated[int | None, arg(metavar="INT")] = None
    """Ask only so many questions of each set: its first rows, the longest documents of each corpus, needles of each
    task and length (otherwise 500), rows of each level of a synthetic task (otherwise 256)."""
    max_length: Annotated[int | None, arg(metavar="INT")] = None
    """Show the model at most so many tokens: otherwise 2048 unless the model names its own, as in lm-eval; for
    longbench 16384, for extrapolation 20480."""
    lengths: tuple[str, ...] = ("1K", "2K", "4K", "8K")
    """Make haystacks of these lengths, in tokens."""
    steps: Annotated[int | None, arg(metavar="INT")] = None
    """Train for so many steps on each synthetic task, instead of the task's own number."""
    device: str = "cpu"
    """Run the model there, as torch names it: cpu, cuda, cuda:1, mps."""
    unshared: bool = False
    """Read what a commonsense question's options have in common once for each of them: slower, the same scores."""
    json: bool = False
    """Print one JSON document instead of a table."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Write the results to this folder."""

    def run(self) -> int | None:
        suites = suites_of(self.suite)
        check(self)
        if suites != ["synthetic"]:
            from gated_deltanet.eval.checkpoint import check_checkpoint

            check_checkpoint(self.checkpoint)
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        found, left_out = evaluate_all(self, suites)
        show(found, left_out, as_json=self.json, alone=len(suites) == 1)
        return None if found else 1


def evaluate_all(options: Eval, suites: list[str]) -> tuple[dict[str, "Result"], dict[str, str]]:
    """One that fails is an error if it is the only one, else left out with the reason. The model is opened once."""
    from gated_deltanet.result import attempt_each

    @cache
    def model() -> Any:
        from gated_deltanet.eval.checkpoint import open_model

        return open_model(options.checkpoint, device=options.device)

    if len(suites) == 1:
        return {suites[0]: evaluate(options, suites[0], model)}, {}
    found, left_out = attempt_each(suites, lambda suite: evaluate(options, suite, model))
    if options.out and found:
        write_overview(options.out, found, left_out)
    return found, left_out


def evaluate(options: Eval, suite: str, model: Callable[[], Any]) -> "Result":
    """One suite, with what machine and options it was run; with --out it is written."""
    from gated_deltanet.cli.output import record_run

    options = replace(options, suite=suite)
    check_packages(options)
    begun = record_run({name: str(x) if isinstance(x, Path) else x for name, x in asdict(options).items()})
    result = run_suite(options, model)
    result = replace(result, document=begun | result.document)
    if options.out:
        result.save(options.out)
    return result


def run_suite(options: Eval, model: Callable[[], Any]) -> "Result":
    from gated_deltanet import eval as suites
    from gated_deltanet.cli.output import tracked
    from gated_deltanet.quantity import parse_size
    from gated_deltanet.synthetic import synthetic

    given: dict[str, Any] = {"limit": options.limit, "keep": options.out, "track": tracked}
    if options.suite == "synthetic":
        return synthetic(options.checkpoint.split(","), steps=options.steps, **given)
    given |= {"data_dir": options.data_dir}
    if options.suite == "needle":
        return suites.needle(model(), lengths=[parse_size("--lengths", each) for each in options.lengths], **given)
    given |= {"max_length": options.max_length}
    if options.suite == "commonsense":
        given |= {"track": named, "share": not options.unshared}
    return getattr(suites, options.suite)(model(), **given)


def named(items: Sequence[str], what: str) -> Iterable[str]:
    """The items, each named on stderr before its turn: lm-eval has progress bars of its own."""
    for item in items:
        print(f"{item} …", file=sys.stderr)
        yield item


def show(found: dict[str, "Result"], left_out: dict[str, str], *, as_json: bool, alone: bool) -> None:
    from gated_deltanet.cli.output import print_json, print_table

    if as_json:
        documents = {suite: result.document for suite, result in found.items()}
        print_json(next(iter(documents.values())) if alone else documents | {"left_out": left_out})
    else:
        for result in found.values():
            print_table(*result.screen, notes=result.notes)
    for suite, reason in left_out.items():
        print(f"gdn: {suite} was left out: {reason}", file=sys.stderr)


def write_overview(out: Path, found: dict[str, "Result"], left_out: dict[str, str]) -> None:
    """What several suites found in one text, with their figures."""
    from gated_deltanet.files import write_text

    parts = []
    for suite, result in found.items():
        figure = f"\n![{suite}]({suite}.png)\n" if result.figure else ""
        parts.append(f"## {suite}\n\n{result.as_markdown()}{figure}")
    parts += [f"## {suite}\n\nLeft out: {reason}.\n" for suite, reason in left_out.items()]
    write_text(out / "report.md", "\n".join(parts))


def suites_of(names: str) -> list[str]:
    """By their names, with commas; all: those that evaluate a checkpoint."""
    from gated_deltanet.naming import unknown

    if names == "all":
        return [name for name in SUITES if name != "synthetic"]
    found = names.split(",")
    for name in found:
        if name not in SUITES:
            raise unknown("--suite", name, [*SUITES, "all"])
    return list(dict.fromkeys(found))


def check_packages(options: Eval) -> None:
    """lm-eval has tasks and prompts; the hub's data sets need `datasets`."""
    needed = {"commonsense": "lm_eval", "longbench": "lm_eval"}
    if not options.data_dir:
        needed["recall"] = "datasets"
    package = needed.get(options.suite)
    if package and find_spec(package) is None:
        name = package.replace("_", "-")
        raise ModuleNotFoundError(f"--suite {options.suite} needs {name}: pip install 'gated-deltanet[eval]'")


def check(options: Eval) -> None:
    """Before the work, whose result would be lost."""
    from gated_deltanet.cli.loading import check_device

    for name, least in (("limit", 1), ("steps", 1), ("max_length", 2)):
        number = getattr(options, name)
        if number is not None and number < least:
            raise ValueError(f"--{name.replace('_', '-')} is {number}, expected at least {least}")
    if options.data_dir and not options.data_dir.is_dir():
        raise ValueError(f"--data-dir is {options.data_dir}, expected a folder")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out is {options.out}, expected a folder")
    check_device(options.device)
