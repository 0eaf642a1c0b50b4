"""`gdn eval --suite needle`: table 2."""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from gated_deltanet.cli.eval import Eval

from .report import Report, answers, check_any, open_reader

NEEDLES = 500  # of each task and length, as RULER has them
TOKENS = 16384  # of haystacks, read at once


def run(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.eval import needle, needle_report
    from gated_deltanet.eval.attempts import attempts
    from gated_deltanet.quantity import parse_size

    reader = open_reader(options)
    lengths = sorted({parse_size("--lengths", length) for length in options.lengths})
    cells = {f"{task} {length}": (task, length) for task, length in product(needle.TASKS, lengths)}
    start = perf_counter()
    found, document["left_out"] = attempts(cells, lambda name: find_needles(options, reader, *cells[name]))
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


def find_needles(options: Eval, reader: Any, task: str, length: int) -> list[dict[str, Any]]:
    """Of each question where the needle was, and whether it was found."""
    from gated_deltanet.eval import needle

    if reader.longest is not None and length > reader.longest:
        raise ValueError(f"{length} tokens, expected at most the {reader.longest} that the model can read")
    keys, hay = needle.words(options.data_dir), needle.haystack(needle.TASKS[task], options.data_dir, reader.encode)
    numbers = range(options.limit or NEEDLES)
    asked = [needle.ask(needle.TASKS[task], length, i, hay, keys, reader.encode, reader.begin) for i in numbers]
    prompts = {" ".join(map(str, question.tokens)): question.tokens for question in asked}

    def write_on(some: list[str]) -> list[str]:
        return reader.write_on([prompts[each] for each in some], needle.ANSWER)

    at_once = max(1, TOKENS // length)
    said = answers(options, f"{task}, {length} tokens", list(prompts), write_on, at_once, needle.ANSWER)
    return [
        {"task": task, "length": length, "depth": question.depth, "right": needle.is_right(text, question.value)}
        for question, text in zip(asked, said, strict=True)
    ]
