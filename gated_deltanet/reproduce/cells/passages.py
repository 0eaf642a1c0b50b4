"""Recall for small models, as tables 4 and 5 ask for it: a passage is read, then a part of it again.

    … passage … ↵ a part of it, from a random place on

Nothing but the passage can tell how the part goes on. Models of bytes learn that soon, models of words do not:
docs/log.md. Then they are asked for the answers of real question sets, each by the words before it in its document.
"""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from gated_deltanet.data import tokenizer
from gated_deltanet.eval.data_sets import Row
from gated_deltanet.eval.longbench import TASKS as LONG_TASKS
from gated_deltanet.eval.longbench import local_rows
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.prefix_sharing import Request, scores
from gated_deltanet.eval.prompting import cut_around
from gated_deltanet.eval.recall import SETS, read_set
from gated_deltanet.models import CausalLM
from gated_deltanet.result import FAILURES
from gated_deltanet.synthetic.batch import NOT_ASKED, Batch

from . import corpus
from .needles import next_tokens, seeded, some

BYTES = tokenizer.byte_tokenizer()
VOCAB_SIZE = tokenizer.vocab_size(BYTES)
BEGIN, LINE = tokenizer.end_of_text(BYTES), ord("\n")
LENGTHS = (16, 32, 64, 128, 256)  # of rows to learn from, in turn
FOUND = 4  # bytes that tell which part is read again
TEXT = 2_400_000  # bytes to learn from
ASKED_SETS = ("squad", "fda", "triviaqa", "nq", "drop")
LEAD = 40  # characters or tokens before an answer, by which it is asked for
ANSWER = 16  # tokens of a long document that are asked for
SHORTEST = 1000  # characters of a long document
LONG = 4  # times the trained length, to which long documents are cut: 16K where the paper trains with 4K


def read_text(data_dir: Path) -> bytes:
    """Articles and novels, as models of text learn from."""
    return "\n".join(text for each in corpus.of_sources(data_dir, TEXT).values() for text in each).encode()


def batch(generator: Generator, n: int, length: int, text: bytes, *, answers_only: bool) -> Batch:
    """n rows to learn from. answers_only: what is read again; else every token is to be foretold."""
    rng = seeded(generator)
    tokens, targets = (torch.tensor(each) for each in zip(*(row(rng, length, text) for _ in range(n)), strict=True))
    return Batch(tokens, targets if answers_only else next_tokens(tokens))


def row(rng: random.Random, length: int, text: bytes) -> tuple[list[int], list[int]]:
    """The part is a quarter to a half of it; its first bytes nobody can know, and they are not asked for."""
    again = rng.randint(length // 4, length // 2 - 2)
    passage = some(rng, text, length - 2 - again)
    at = rng.randint(0, len(passage) - again)
    tokens = [BEGIN, *passage, LINE, *passage[at : at + again]]
    known = length - again + FOUND
    return tokens, [*[NOT_ASKED] * (known - 1), *tokens[known:], NOT_ASKED]


def asked(model: CausalLM, data_dir: Path, seed: int, limit: int) -> dict[str, Any]:
    return gains(OurModel(model, BYTES), LENGTHS[-1], data_dir, limit)


def gains(model: OurModel, length: int, data_dir: Path, limit: int) -> dict[str, Any]:
    """By how much its document, against another's, lowers the loss of each answer: [nats, tokens] of each.

    length: it was trained with. limit: questions of each set, and a tenth of it long documents of each task.
    """
    sets = {name: questions(name, data_dir, limit) for name in ASKED_SETS}
    long = {name: long_documents(name, data_dir, max(2, limit // 10)) for name in LONG_TASKS}
    found = {
        "gain": {name: of_questions(model, length, rows) for name, rows in sets.items() if rows},
        "long_gain": {name: of_documents(model, LONG * length, texts) for name, texts in long.items() if texts[1:]},
    }
    for what, of in found.items():
        if not of:
            raise ValueError(f"{what}: nothing in {data_dir} can be asked for, expected sets of docs/evaluation.md")
    return found


def questions(name: str, data_dir: Path, limit: int) -> list[Row]:
    """Of a set, those whose answer stands in their document, after enough words to ask for it."""
    rows = (begun(each) for each in read_set(SETS[name], data_dir).rows)
    return list(islice((each for each in rows if each), limit))


def begun(row: Row) -> Row | None:
    """The question is the words before the answer, as in the cloze prompts of the paper's sets."""
    context = row["context"]
    for answer in filter(None, map(str.strip, row["answers"])):
        at = context.find(answer, LEAD)
        if at > 0:
            lead = context[at - LEAD : at]
            return {"context": context, "question": lead, "answers": [answer], "wanted": [lead + answer]}
    return None


def of_questions(model: OurModel, length: int, rows: Sequence[Row]) -> list[list[float]]:
    def request(row: Row) -> Request:
        answer = model.encode(row["answers"][0])[: length // 4]
        asked = model.encode(f"\n{row['question']}")
        room = length - 1 - len(asked) - len(answer)
        context = model.encode(cut_around(row["context"], row["wanted"], room, model))[:room]
        return Request([model.first_token, *context, *asked, *answer], len(answer))

    others = [row | {"context": another(rows, i), "wanted": []} for i, row in enumerate(rows)]
    return differences(model, [request(row) for row in rows], [request(row) for row in others])


def another(rows: Sequence[Row], i: int) -> str:
    """The next document that is not that of row i: several questions may share one."""
    following = (row["context"] for row in (*rows[i + 1 :], *rows[:i]))
    return next((context for context in following if context != rows[i]["context"]), "")


def long_documents(name: str, data_dir: Path, limit: int) -> list[str]:
    """Of a task of LongBench; none if the folder does not have it."""
    try:
        texts = (row["prompt"] for row in local_rows(name, data_dir)[1] if "prompt" in row)
        return list(islice((text for text in texts if len(text) > SHORTEST), limit))
    except FAILURES:
        return []


def of_documents(model: OurModel, length: int, documents: Sequence[str]) -> list[list[float]]:
    """Asked for is what stands in the middle of each, cut to so many tokens, given it or the one before it."""
    room = length - 2 - LEAD - ANSWER
    read, line = [model.encode(text)[:room] for text in documents], model.encode("\n")

    def request(document: Sequence[int], asked: Sequence[int]) -> Request:
        middle = len(asked) // 2
        part = asked[middle - LEAD : middle + ANSWER]
        return Request([model.first_token, *document, *line, *part], ANSWER)

    own = [request(tokens, tokens) for tokens in read]
    return differences(model, own, [request(read[i - 1], tokens) for i, tokens in enumerate(read)])


def differences(model: OurModel, own: Sequence[Request], others: Sequence[Request]) -> list[list[float]]:
    together = zip(scores(model.model, own), scores(model.model, others), own, strict=True)
    return [[round(a.logprob - b.logprob, 4), each.scored] for a, b, each in together]
