"""What every suite of `gdn eval` shares: its report, and answers that are kept."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.cli.eval import Eval
from gated_deltanet.cli.report import as_markdown, tracked, write_json

Table: TypeAlias = tuple[str, list[str], list[list[str]]]  # title, columns, cells


class Report(NamedTuple):
    table: Table  # in the paper's layout
    screen: Table  # what of it a terminal can show
    notes: list[str]


def open_ours(options: Eval) -> tuple[Any, Any]:
    """A model of ours and its tokenizer: other models have no state that we could carry."""
    from gated_deltanet.data import tokenizer
    from gated_deltanet.models import load

    return load(options.checkpoint).eval(), tokenizer.load(options.checkpoint)


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
    text = f"{as_markdown(*report.table)}\n\n" + "".join(f"- {note}\n" for note in report.notes)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
