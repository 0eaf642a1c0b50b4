"""The suites of `gdn eval`. Each fills the document with its results and says what to show of it."""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from gated_deltanet.cli.eval import Eval
from gated_deltanet.cli.report import as_markdown, tracked, write_json

Table: TypeAlias = tuple[str, list[str], list[list[str]]]  # title, columns, cells


NEEDLES = 500  # of each task and length, as RULER has them
TOKENS = 16384  # of haystacks, read at once


class Report(NamedTuple):
    table: Table  # in the paper's layout
    screen: Table  # what of it a terminal can show
    notes: list[str]


def commonsense(options: Eval, document: dict[str, Any]) -> Report:
    if find_spec("lm_eval") is None:
        raise ModuleNotFoundError("--suite commonsense needs lm-eval: pip install 'gated-deltanet[eval]'")
    from gated_deltanet.eval import commonsense, tasks
    from gated_deltanet.eval.checkpoints import fingerprint
    from gated_deltanet.eval.language_model import open_model

    settings = {"max_length": options.max_length, "share": not options.unshared}
    model = open_model(options.checkpoint, **settings)
    memory = options.out and options.out / f"answers-{fingerprint(options.checkpoint, settings)}"

    def evaluate(name: str, data: Any) -> dict[str, Any]:
        print(f"{name} …", file=sys.stderr)
        return tasks.evaluate(model, name, data, options.data_dir, limit=options.limit, memory=memory)

    document |= commonsense.run(evaluate)
    document["versions"] = {name: version(name) for name in ("lm_eval", "datasets", "transformers", "torch")}
    document["seed"] = tasks.SEED
    check_any(document["sets"], document)
    name = Path(options.checkpoint).name
    return Report(commonsense.table(document, name), commonsense.short(document, name), commonsense.notes(document))


def extrapolation(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.data import tokenizer
    from gated_deltanet.eval import corpora, extrapolation
    from gated_deltanet.eval.attempts import attempts

    model, texts = open_ours(options)
    document["ends"] = ends = buckets(options.max_length)

    def losses(some: list[str]) -> list[list[tuple[float, int]]]:
        rows = [[tokenizer.end_of_text(texts), *ids.tolist()] for ids in tokenizer.encode(texts, some)]
        return [extrapolation.by_bucket(extrapolation.losses(model, row[: ends[-1] + 1]), ends) for row in rows]

    def evaluate(name: str) -> dict[str, Any]:
        start, found = perf_counter(), corpora.texts(name, options.data_dir, options.limit)
        points = extrapolation.curve(answers(options, name, found, losses, 1, ends), ends)
        source = str(options.data_dir / corpora.CORPORA[name].files) if options.data_dir else "stdlib"
        own = options.data_dir is not None and corpora.CORPORA[name].own
        return {"points": points, "source": source, "own": own, "seconds": perf_counter() - start}

    wanted = list(corpora.CORPORA) if options.data_dir else [corpora.LIBRARY]
    document["corpora"], document["left_out"] = attempts(wanted, evaluate)
    check_any(document["corpora"], document)
    name = Path(options.checkpoint).name
    if options.out and find_spec("matplotlib"):
        from gated_deltanet.eval.extrapolation_figure import draw

        draw(document, name, options.out / "extrapolation.png")
    table, screen = extrapolation.table(document, name), extrapolation.short(document, name)
    return Report(table, screen, extrapolation.notes(document))


def needle(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.eval import needle, needle_report
    from gated_deltanet.eval.attempts import attempts
    from gated_deltanet.quantity import parse_size

    model, texts = open_ours(options)
    lengths = sorted({parse_size("--lengths", length) for length in options.lengths})
    cells = {f"{task} {length}": (task, length) for task, length in product(needle.TASKS, lengths)}
    start = perf_counter()
    found, document["left_out"] = attempts(cells, lambda name: find_needles(options, model, texts, *cells[name]))
    check_any(found, document)
    document["cells"] = needle.cells([each for results in found.values() for each in results])
    tasks = dict.fromkeys(cell["task"] for cell in document["cells"])
    document["effective_length"] = {task: needle.effective_length(document["cells"], task) for task in tasks}
    document["keys"] = "built in" if needle.words(options.data_dir) is needle.WORDS else "wordlists"
    document["seconds"] = perf_counter() - start
    name = Path(options.checkpoint).name
    if options.out and find_spec("matplotlib"):
        needle_report.draw(document, name, options.out / "needle.png")
    table, screen = needle_report.table(document, name), needle_report.short(document, name)
    return Report(table, screen, needle_report.notes(document))


def find_needles(options: Eval, model: Any, texts: Any, task: str, length: int) -> list[dict[str, Any]]:
    """Of each question where the needle was, and whether it was found."""
    from gated_deltanet.data.tokenizer import end_of_text
    from gated_deltanet.eval import needle
    from gated_deltanet.models import Sampling, generate

    end, keys = end_of_text(texts), needle.words(options.data_dir)
    hay = needle.haystack(needle.TASKS[task], options.data_dir, texts)
    asked = [needle.ask(needle.TASKS[task], length, i, hay, keys, texts, end) for i in range(options.limit or NEEDLES)]
    prompts = {" ".join(map(str, question.tokens)): question.tokens for question in asked}
    sampling = Sampling(temperature=0, max_tokens=needle.ANSWER)

    def write_on(some: list[str]) -> list[str]:
        rows = [prompts[each] for each in some]
        return [x.text for x in generate(model, rows, sampling, tokenizer=texts, end=end)]

    at_once = max(1, TOKENS // length)
    said = answers(options, f"{task}, {length} tokens", list(prompts), write_on, at_once, needle.ANSWER)
    return [
        {"task": task, "length": length, "depth": question.depth, "right": needle.is_right(text, question.value)}
        for question, text in zip(asked, said, strict=True)
    ]


SUITES = {"commonsense": commonsense, "extrapolation": extrapolation, "needle": needle}


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


def buckets(most: int | None) -> list[int]:
    """Fig. 2's: 4K, then steps of 2K to 20K or to --max-length."""
    most = most or 20480
    return [*range(4096, most, 2048), most]


def check_any(found: Any, document: dict[str, Any]) -> None:
    if not found:
        reasons = dict.fromkeys(document["left_out"].values())
        raise ValueError(f"nothing could be evaluated: {'; '.join(reasons)}")


def write(out: Path, name: str, document: dict[str, Any], report: Report) -> None:
    write_json(out / f"{name}.json", document)
    text = f"{as_markdown(*report.table)}\n\n" + "".join(f"- {note}\n" for note in report.notes)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
