"""What every suite of `gdn eval` shares: its report, and answers that are kept."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.cli.eval import Eval
from gated_deltanet.cli.report import as_markdown, tracked, write_json, write_text

Table: TypeAlias = tuple[str, list[str], list[list[str]]]  # title, columns, cells


class Report(NamedTuple):
    table: Table  # in the paper's layout
    screen: Table  # what of it a terminal can show
    notes: list[str]


def open_reader(options: Eval) -> Any:
    """The checkpoint as an `eval.readers.Reader`."""
    from gated_deltanet.eval.checkpoints import is_ours

    if is_ours(options.checkpoint):
        from gated_deltanet.cli.loading import load
        from gated_deltanet.eval.readers import Ours

        return Ours(*load(Path(options.checkpoint), options.device))
    if find_spec("transformers") is None:
        what = f"{options.checkpoint} is not one of our models, and others need transformers"
        raise ModuleNotFoundError(f"{what}: pip install 'gated-deltanet[hf]'")
    from gated_deltanet.eval.foreign import open_foreign

    return open_foreign(options.checkpoint, options.device)


def answers(
    options: Eval,
    what: str,
    questions: Sequence[str],
    answer: Callable[[list[str]], list[Any]],
    at_once: int,
    settings: object,
) -> list[Any]:
    """With a bar on stderr; with --out kept, and taken from there."""
    from gated_deltanet.eval.answers import answered
    from gated_deltanet.eval.checkpoints import fingerprint

    kept = options.out and options.out / f"answers-{fingerprint(options.checkpoint, settings)}.jsonl"
    made = answered(questions, answer, kept, at_once)
    return [each for _, each in zip(tracked(questions, what), made, strict=True)]


def check_any(found: Any, document: dict[str, Any]) -> None:
    if not found:
        reasons = dict.fromkeys(document["left_out"].values())
        raise ValueError(f"nothing could be evaluated: {'; '.join(reasons)}")


def write(out: Path, name: str, document: dict[str, Any], report: Report) -> None:
    write_json(out / f"{name}.json", document)
    write_text(out / f"{name}.md", as_text(report))


def write_overview(out: Path, found: dict[str, tuple[Any, Report]], left_out: dict[str, str]) -> None:
    """What several suites found in one text, with their pictures."""
    parts = []
    for name, (_, report) in found.items():
        picture = f"\n![{name}]({name}.png)\n" if (out / f"{name}.png").exists() else ""
        parts.append(f"## {name}\n\n{as_text(report)}{picture}")
    parts += [f"## {name}\n\nLeft out: {reason}.\n" for name, reason in left_out.items()]
    write_text(out / "report.md", "\n".join(parts))


def as_text(report: Report) -> str:
    return f"{as_markdown(*report.table)}\n\n" + "".join(f"- {note}\n" for note in report.notes)
