"""Table 4: recall of what a text said, by completing it.

The data sets are of a folder, or JRT's own of the hub: "Just read twice" (Arora et al., 2024), whose prompts and whose
cut to 2K tokens the paper took over.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.paper import TABLE_4
from gated_deltanet.result import Result, Track, untracked

from . import paper_table
from .checkpoint import as_model
from .data_sets import Row, Set, file_notes, find_file, hub_rows, read_rows, text, texts
from .paper_table import Column, Layout, mean_score, versions
from .prompting import Codec, complete_all, cut_around, length_of, room

LENGTH = 2048  # tokens of prompt and answer
MAX_TOKENS, STOP = 48, ("\n",)  # of an answer
SUMMARY = "Summary of information above"  # which holds what is asked for, in SWDE's documents
METRIC = "contains"
SHOWN = "rows_with_the_answer_in_the_prompt"
ASKED = "Their questions are asked as they are, with “The answer is” after them; the paper's are begun sentences (JRT)."


def recall(
    model: Any,
    tokenizer: Any = None,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """Percent of completions that hold an answer, on six data sets.

    model, tokenizer: see `eval.as_model`. data_dir: the folder of the data sets; None: the hub's, which need
    `datasets`. limit: questions of each set, the first ones. max_length: tokens of prompt and answer; None: 2048, or
    fewer if the model is made for fewer. keep: the folder in which answers are kept. track: is given the prompts.
    """
    model, folder = as_model(model, tokenizer), Path(data_dir) if data_dir else None
    length = length_of(model, max_length, LENGTH)

    def evaluate(name: str) -> dict[str, Any]:
        start, source = perf_counter(), read_set(SETS[name], folder)
        rows = source.rows[:limit]
        answers = [row["answers"] for row in rows]
        prompts = [prompt(row, room(model, length, MAX_TOKENS), model) for row in rows]
        completions = complete_all(model, prompts, MAX_TOKENS, STOP, keep=keep, track=track, what=name)
        return {
            "source": source.name,
            "files_left_out": source.left_out,
            "differs": source.differs,
            "rows": len(rows),
            "rows_held": len(source.rows),
            SHOWN: sum(map(contains, prompts, answers)),
            "as_in_the_paper": not source.differs and len(rows) == len(source.rows),
            "seconds": perf_counter() - start,
            **mean_score(METRIC, list(map(contains, completions, answers))),
        }

    document = {"length": length, "versions": versions()}
    return result(document | paper_table.measure(LAYOUT, SETS, evaluate), model.name)


def result(document: dict[str, Any], name: str) -> Result:
    return paper_table.result("recall", LAYOUT, document, name, notes(document))


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    sets = document["sets"]
    others = [f"{name} ({found['differs']})" for name, found in sets.items() if found["differs"]]
    lost = [f"{name} {x['rows'] - x[SHOWN]} of {x['rows']}" for name, x in sets.items() if x[SHOWN] < x["rows"]]
    some = [f"{name} ({x['rows']} of {x['rows_held']})" for name, x in sets.items() if x["rows"] < x["rows_held"]]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *file_notes(document["sets"]),
        *([f"Not the paper's own data: {', '.join(others)}.", ASKED] if others else []),
        *([f"The first rows only: {', '.join(some)}."] if some else []),
        *([f"No answer is in the prompt, by what the set asks or by the cut: {', '.join(lost)}."] if lost else []),
        *(["Avg is of all six sets, and not all are here."] if document["row"]["Avg"] is None else []),
        f"Percent of completions that hold an answer, in any case; prompt and answer take {document['length']} tokens.",
        "Of longer contexts what is around the answer is kept; SWDE, FDA: key or value; TriviaQA, DROP: the beginning.",
    ]


def contains(said: str, answers: Sequence[str]) -> bool:
    """Whether one of them is in it, in any case."""
    return any(answer.lower() in said.lower() for answer in answers)


def prompt(row: Row, room: int, codec: Codec) -> str:
    """What is to be completed, in so many tokens: the context, cut, and then the question."""
    question = row["question"]
    left = room - len(codec.encode(f". {question}"))
    if left < 1:
        raise ValueError(f"{room} tokens have no room for a question and its context, expected a larger --max-length")
    context = cut_around(row["context"], row["wanted"], left, codec).strip()
    return f"{context.strip('.')}. {question}" if question else context


class RecallSet(NamedTuple):
    """data: the file of a folder, differs: from the paper's in what. hub: the paper's own, convert: its rows."""

    title: str  # of the paper's column
    data: Set
    differs: str
    hub: str
    convert: Callable[[Row], Row]


def passage(context: str, question: str, answers: Sequence[str], wanted: Sequence[str] = ()) -> Row:
    """wanted: what the context is cut around."""
    context = context.strip()
    if question and context.lower().endswith(question.lower()):
        context = context[: -len(question)]
    return {"context": context, "question": question, "answers": list(answers), "wanted": list(wanted)}


def keyed(row: Row) -> Row:
    key, value = text(row, "key").strip(), text(row, "value").strip()
    context = text(row, "text").partition(SUMMARY)[0]
    return passage(context, f"{key[0].upper()}{key[1:]}:", [value], [key, value])


def completed(row: Row) -> Row:
    """SQuAD's of the hub: the text already ends where the answer is to be written."""
    return passage(text(row, "text"), "", [text(row, "value").strip()], [row["value"].strip()])


def cloze(row: Row) -> Row:
    """The question is already the beginning of a sentence."""
    return passage(untagged(text(row, "context")), text(row, "question").strip(), texts(row, "answers"))


def cloze_around(row: Row) -> Row:
    return cloze(row) | {"wanted": row["answers"]}


def asked(row: Row) -> Row:
    """A question, and after it a sentence to complete."""
    question = text(row, "question").strip().rstrip("?").rstrip()
    return cloze(row | {"question": f"{question}? The answer is"})


def asked_around(row: Row) -> Row:
    return asked(row) | {"wanted": row["answers"]}


def untagged(context: str) -> str:
    """TriviaQA's documents mark titles and paragraphs."""
    return re.sub(r"\[(PAR|DOC|TLE)\]", "", context)


SETS = {  # in the paper's order; around what each is cut is JRT's choice
    "swde": RecallSet(
        "SWDE", Set("swde/validation.jsonl.gz", "validation", None, (), keyed), "", "hazyresearch/based-swde-v2", keyed
    ),
    "squad": RecallSet(
        "SQD",
        Set("squad/squad_v1_dev_subset.jsonl.gz", "validation", None, (), asked_around),
        "a part of SQuAD 1.1",
        "hazyresearch/based-squad",
        completed,
    ),
    "fda": RecallSet(
        "FDA",
        Set("fda/fda_recall.jsonl.gz", "validation", None, (), keyed),
        "rebuilt from public 510(k) summaries, other documents and values",
        "hazyresearch/based-fda",
        keyed,
    ),
    "triviaqa": RecallSet(
        "TQA",
        Set("triviaqa/triviaqa_ctx_200.jsonl.gz", "validation", None, (), asked),
        "the 200 of LongBench",
        "hazyresearch/based_triviaqa",
        cloze,
    ),
    "nq": RecallSet(
        "NQ",
        Set("nq/nq_open_oracle_2655.jsonl.gz", "validation", None, (), asked_around),
        "the paragraph with the answer instead of its page",
        "hazyresearch/based_nq_2048",
        cloze_around,
    ),
    "drop": RecallSet(
        "Drop",
        Set("drop/drop_dev_1000.jsonl.gz", "validation", None, (), asked),
        "1,000 of its development set",
        "hazyresearch/based_drop",
        cloze,
    ),
}


class Source(NamedTuple):
    """Where rows are from, what else is there and not read, in what they differ from the paper's, and the rows."""

    name: str
    left_out: dict[str, str]
    differs: str
    rows: list[Row]


def read_set(each: RecallSet, folder: Path | None) -> Source:
    if folder is None:
        return Source(f"hub: {each.hub}", {}, "", hub_rows(each.hub, None, each.data.split, each.convert))
    (file,), left_out = find_file(each.data, folder)
    documented = (folder / each.data.file).exists()
    differs = each.differs if documented else f"{file.name}, a file of our folder"
    return Source(str(file), left_out, differs, read_rows(each.data, folder))


LAYOUT = Layout(
    "Real-world recall, inputs cut to 2K tokens (table 4)",
    (
        *(Column(each.title, ((name, METRIC),)) for name, each in SETS.items()),
        Column("Avg", tuple((name, METRIC) for name in SETS)),
    ),
    TABLE_4,
)
