"""Table 3: language modelling and zero-shot common-sense reasoning, by lm-evaluation-harness."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gated_deltanet.paper import TABLE_3
from gated_deltanet.result import Result, Track, answer_file, untracked

from . import paper_table
from .checkpoint import as_model
from .data_sets import Row, Set, file_notes, read_text
from .paper_table import Column, Layout, versions


def commonsense(
    model: Any,
    tokenizer: Any = None,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    share: bool = True,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """WikiText and LAMBADA perplexity, and accuracy on eight data sets. Needs lm-eval.

    model, tokenizer: see `eval.as_model`; a model of lm-eval (`LM`) is taken, too. data_dir: the folder of the data
    sets; None: the hub's. limit: questions of each set, the first ones. max_length: tokens the model is shown at most;
    None: its own length, else 2048. share: read what a question's options have in common once. keep: the folder in
    which answers are kept. track: is given the names of the sets.
    """
    from . import lm_eval_tasks
    from .harness import AnswersKept, lm_eval_model

    model, folder = as_model(model, tokenizer), Path(data_dir) if data_dir else None
    asked: Any = lm_eval_model(model, max_length=max_length, share=share)
    if file := answer_file(keep, getattr(model, "identity", None), max_length, share):
        asked = AnswersKept(asked, file)

    def evaluate(name: str) -> dict[str, Any]:
        with redirect_stdout(sys.stderr):  # lm-eval prints
            return lm_eval_tasks.evaluate(asked, name, SETS[name], folder, limit=limit)

    document = measure(track(list(SETS), "data sets"), evaluate)
    document |= {"versions": versions(), "seed": lm_eval_tasks.SEED}
    return result(document, getattr(model, "name", type(model).__name__))


def measure(names: Iterable[str], evaluate: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Of these sets. The row is a list, since two columns of the table are LAMBADA's."""
    document = paper_table.measure(LAYOUT, names, evaluate)
    return document | {"row": list(document["row"].values())}


def result(document: dict[str, Any], name: str) -> Result:
    return paper_table.result("commonsense", LAYOUT, document, name, notes(document))


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    partial = [name for name, found in document["sets"].items() if not found["as_in_the_paper"]]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *file_notes(document["sets"]),
        *([f"Not all rows of the paper's sets: {', '.join(partial)}."] if partial else []),
        *(["Avg. is of all eight accuracies, and not all are here."] if document["row"][-1] is None else []),
    ]


def read_articles(file: Path) -> Iterator[tuple[int, Row]]:
    """WikiText cut at its titles, ` = Title = `, as EleutherAI/wikitext_document_level cuts it."""
    pages: list[list[str]] = [[]]
    for line in read_text(file).split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            pages.append([])
        pages[-1].append(line)
    texts = ("\n".join(lines) for lines in pages)
    yield from enumerate(({"page": text} for text in texts if text.strip()), 1)


def with_label(row: Row) -> Row:
    """BoolQ's own `answer` as SuperGLUE's label."""
    return row if "label" in row else row | {"label": int(row["answer"])}


ARC = ("question", "choices", "answerKey")
SETS = {  # by lm-eval's names
    "wikitext": Set("wikitext2/wiki.test.raw.gz", "test", 62, ("page",), read=read_articles, word="raw"),
    "lambada_openai": Set("lambada/lambada_test.jsonl.gz", "test", 5153, ("text",)),
    "piqa": Set("piqa/validation.jsonl.gz", "validation", 1838, ("goal", "sol1", "sol2", "label")),
    "hellaswag": Set(
        "hellaswag/validation.jsonl.gz", "validation", 10042, ("activity_label", "ctx_a", "ctx_b", "endings", "label")
    ),
    "winogrande": Set(
        "winogrande/validation_xl.jsonl.gz", "validation", 1267, ("sentence", "option1", "option2", "answer")
    ),
    "arc_easy": Set("arc/ARC-Easy-test.jsonl.gz", "test", 2376, ARC, word="easy"),
    "arc_challenge": Set("arc/ARC-Challenge-test.jsonl.gz", "test", 1172, ARC, word="challenge"),
    "social_iqa": Set(
        "siqa/validation.jsonl.gz",
        "validation",
        1954,
        ("context", "question", "answerA", "answerB", "answerC", "label"),
    ),
    "boolq": Set("boolq/validation.jsonl.gz", "validation", 3270, ("question", "passage", "answer"), with_label),
}

ACCURACIES = {
    "LMB. acc ↑": ("lambada_openai", "acc"),
    "PIQA acc ↑": ("piqa", "acc"),
    "Hella. acc_n ↑": ("hellaswag", "acc_norm"),
    "Wino. acc ↑": ("winogrande", "acc"),
    "ARC-e acc ↑": ("arc_easy", "acc"),
    "ARC-c acc_n ↑": ("arc_challenge", "acc_norm"),
    "SIQA acc ↑": ("social_iqa", "acc"),
    "BoolQ acc ↑": ("boolq", "acc"),
}
LAYOUT = Layout(
    "Language modelling and zero-shot common-sense reasoning (table 3)",
    (
        Column("Wiki. ppl ↓", (("wikitext", "word_perplexity"),), percent=False),
        Column("LMB. ppl ↓", (("lambada_openai", "perplexity"),), percent=False),
        *(Column(title, (score,)) for title, score in ACCURACIES.items()),
        Column("Avg.", tuple(ACCURACIES.values())),
    ),
    TABLE_3,
    digits=2,
)
