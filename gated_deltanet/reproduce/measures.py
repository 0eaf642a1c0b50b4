"""What is measured of one small text model, as sums that verdicts are computed from without it.

A loss is in nats. [total, n] is a sum over n tokens, of one document or one question.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gated_deltanet.data.sources import documents
from gated_deltanet.eval.extrapolation import CORPORA, by_bucket, texts
from gated_deltanet.eval.longbench import TASKS as LONG_TASKS
from gated_deltanet.eval.longbench import local_rows
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.prefix_sharing import Request, Score, score
from gated_deltanet.eval.prompting import cut_middle
from gated_deltanet.eval.recall import SETS, prompt, read_set
from gated_deltanet.result import FAILURES

from .numbers import FAR

TIMES = 20  # the trained length, up to which losses are measured by position
VALIDATION = {"articles": "wikipedia_en/valid.jsonl.gz", "novels": "novels_en/valid"}
DOCUMENTS, CHARACTERS = 60, 60_000  # of each validation text, at most
GAIN_SETS = ("squad", "fda", "triviaqa", "nq", "drop")
LONG = 4  # times the trained length, to which long documents are cut: 16K where the paper trains with 4K


class Piece(NamedTuple):
    """Of a text, in one row."""

    tokens: Sequence[int]
    losses: Tensor  # of each but the first


def measure(model: OurModel, length: int, data_dir: Path, limit: int | None) -> dict[str, Any]:
    """length: it was trained with. limit: questions of each set, and a twentieth of it documents of each corpus; None:
    the validation loss only."""
    read = validation_losses(model, length, data_dir)
    found = {"validation": {name: [sum_of(pieces) for pieces in texts] for name, texts in read.items()}}
    if limit is None:
        return found
    far = long_rows(model, length, data_dir, max(1, limit // 20))
    return found | {
        "pairs": seen_pairs(piece for texts in read.values() for pieces in texts for piece in pieces),
        "gain": context_gains(model, length, data_dir, limit),
        "long_gain": long_gains(model, length, data_dir, limit),
        "positions": {name: by_position(model, length, rows) for name, rows in far.items()},
        "far_afresh": {name: far_afresh(model, length, rows) for name, rows in far.items()},
    }


def validation_losses(model: OurModel, length: int, data_dir: Path) -> dict[str, list[list[Piece]]]:
    """Of each document, read as training reads them: in rows of the trained length."""
    found = {}
    for name, where in VALIDATION.items():
        texts = [each.text[:CHARACTERS] for each in islice(documents(str(data_dir / where)), DOCUMENTS)]
        rows = [[model.first_token, *model.encode(text)] for text in texts]
        found[name] = [[Piece(part, model.losses(part)) for part in in_rows(row, length)] for row in rows]
    return found


def in_rows(row: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Of `length` positions, each with the token after its last."""
    return (row[at : at + length + 1] for at in range(0, len(row) - 1, length))


def sum_of(pieces: Sequence[Piece]) -> list[float]:
    return [round(sum(float(each.losses.sum()) for each in pieces), 4), sum(len(each.losses) for each in pieces)]


def seen_pairs(pieces: Iterable[Piece]) -> dict[str, list[float]]:
    """Of tokens that complete a pair that was in their row before, and of all others (Zoology's slices)."""
    totals = {"seen": [0.0, 0], "new": [0.0, 0]}
    for piece in pieces:
        before: set[tuple[int, int]] = set()
        for pair, loss in zip(pairwise(piece.tokens), piece.losses.tolist(), strict=True):
            of = totals["seen" if pair in before else "new"]
            of[0] += loss
            of[1] += 1
            before.add(pair)
    return {name: [round(total, 4), n] for name, (total, n) in totals.items()}


def scores_of(model: OurModel, requests: Sequence[Request]) -> list[Score]:
    found = dict(score(model.model, requests))
    return [found[i] for i in range(len(requests))]


def context_gains(model: OurModel, length: int, data_dir: Path, limit: int) -> dict[str, list[list[float]]]:
    """Of each question by how much its document, against another's, lowers the loss of the answer; and its tokens."""
    found = {}
    for name in GAIN_SETS:
        rows = read_set(SETS[name], data_dir).rows[:limit]
        others = [row | {"context": another(rows, i), "wanted": []} for i, row in enumerate(rows)]
        own, other = ([request(model, row, length) for row in each] for each in (rows, others))
        found[name] = gains(scores_of(model, other), scores_of(model, own), own)
    return found


def another(rows: Sequence[dict[str, Any]], i: int) -> str:
    """The next document that is not that of row i: several questions may share one."""
    following = (row["context"] for row in (*rows[i + 1 :], *rows[:i]))
    return next((context for context in following if context != rows[i]["context"]), "")


def request(model: OurModel, row: dict[str, Any], length: int) -> Request:
    answer = model.encode(f" {row['answers'][0].strip()}")[: length // 4]
    asked = prompt(row, length - 1 - len(answer), model)
    return Request([model.first_token, *model.encode(asked), *answer], len(answer))


def gains(without: Sequence[Score], with_it: Sequence[Score], requests: Sequence[Request]) -> list[list[float]]:
    together = zip(without, with_it, requests, strict=True)
    return [[round(b.logprob - a.logprob, 4), each.scored] for a, b, each in together]


def long_gains(model: OurModel, length: int, data_dir: Path, limit: int) -> dict[str, list[list[float]]]:
    """As `context_gains`, of LongBench's documents, against only the end of the prompt, which holds the question."""
    found = {}
    for name in LONG_TASKS:
        try:
            rows = [row for row in local_rows(name, data_dir)[1] if "prompt" in row][: max(1, limit // 10)]
        except FAILURES:  # a task that the folder does not have
            continue
        own, end = [], []
        for row in rows:
            answer = model.encode(f" {row['answers'][0].strip()}")[: length // 4]
            whole = model.encode(cut_middle(row["prompt"], LONG * length, model))
            own.append(Request([model.first_token, *whole, *answer], len(answer)))
            end.append(Request([model.first_token, *whole[-length // 4 :], *answer], len(answer)))
        if rows:
            found[name] = gains(scores_of(model, end), scores_of(model, own), own)
    return found


def long_rows(model: OurModel, length: int, data_dir: Path, limit: int) -> dict[str, list[list[int]]]:
    """The longest documents of each corpus of Fig. 2."""
    most = TIMES * length + 1
    found = {name: texts(name, data_dir, limit) for name in CORPORA}
    return {
        name: [[model.first_token, *model.encode(t[: 12 * most])][:most] for t in each] for name, each in found.items()
    }


def by_position(model: OurModel, length: int, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """The loss of each stretch of the trained length."""
    ends = [length * i for i in range(1, TIMES + 1)]
    totals = [[0.0, 0] for _ in ends]
    for row in rows:
        for total, (loss, n) in zip(totals, by_bucket(model.losses(row), ends), strict=True):
            total[0] += loss
            total[1] += n
    return [[round(loss, 3), n] for loss, n in totals]


def far_afresh(model: OurModel, length: int, rows: Sequence[Sequence[int]]) -> list[float]:
    """The loss of the stretches from FAR on, each read by itself: what is far is often harder to read, too."""
    return sum_of([Piece(part, model.losses(part)) for row in rows for part in in_rows(row[FAR * length :], length)])
