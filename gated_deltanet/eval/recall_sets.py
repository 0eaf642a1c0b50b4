"""The data sets of table 4, of a folder or JRT's own of the hub, and their rows as texts to complete.

JRT is "Just read twice" (Arora et al., 2024), whose prompts and whose cut to 2K tokens the paper took over.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .cutting import Codec, around
from .needle import is_right
from .sets import Row, Set, text, texts

LENGTH = 2048  # tokens of prompt and answer
SETTINGS = {"until": ["\n"], "max_gen_toks": 48, "do_sample": False}
SUMMARY = "Summary of information above"  # which holds what is asked for, in SWDE's documents


class Recall(NamedTuple):
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


RECALL = {  # in the paper's order; around what each is cut is JRT's choice
    "swde": Recall(
        "SWDE", Set("swde/validation.jsonl.gz", "validation", None, (), keyed), "", "hazyresearch/based-swde-v2", keyed
    ),
    "squad": Recall(
        "SQD",
        Set("squad/squad_v1_dev_subset.jsonl.gz", "validation", None, (), asked_around),
        "a part of SQuAD 1.1",
        "hazyresearch/based-squad",
        completed,
    ),
    "fda": Recall(
        "FDA",
        Set("fda/fda_recall.jsonl.gz", "validation", None, (), keyed),
        "rebuilt from public 510(k) summaries, other documents and values",
        "hazyresearch/based-fda",
        keyed,
    ),
    "triviaqa": Recall(
        "TQA",
        Set("triviaqa/triviaqa_ctx_200.jsonl.gz", "validation", None, (), asked),
        "the 200 of LongBench",
        "hazyresearch/based_triviaqa",
        cloze,
    ),
    "nq": Recall(
        "NQ",
        Set("nq/nq_open_oracle_2655.jsonl.gz", "validation", None, (), asked_around),
        "the paragraph with the answer instead of its page",
        "hazyresearch/based_nq_2048",
        cloze_around,
    ),
    "drop": Recall(
        "Drop",
        Set("drop/drop_dev_1000.jsonl.gz", "validation", None, (), asked),
        "1,000 of its development set",
        "hazyresearch/based_drop",
        cloze,
    ),
}


def prompt(row: Row, room: int, codec: Codec) -> str:
    """What is to be completed, in so many tokens: the context, cut, and then the question."""
    question = row["question"]
    left = room - len(codec.encode(f". {question}"))
    if left < 1:
        raise ValueError(f"{room} tokens have no room for a question and its context, expected a larger --max-length")
    context = around(row["context"], row["wanted"], left, codec).strip()
    return f"{context.strip('.')}. {question}" if question else context


def contains(said: str, answers: Sequence[str]) -> bool:
    """Whether one of them is in it, in any case."""
    return any(is_right(said, answer) for answer in answers)
