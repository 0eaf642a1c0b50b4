"""What is measured of one small text model, as sums that verdicts are computed from without it.

A loss is in nats. [total, n] is a sum over n tokens, of one document.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gated_deltanet.data.sources import documents
from gated_deltanet.eval.extrapolation import CORPORA, by_bucket, texts
from gated_deltanet.eval.model import OurModel

from ..numbers import FAR

TIMES = 20  # the trained length, up to which losses are measured by position
VALIDATION = {"articles": "wikipedia_en/valid.jsonl.gz", "novels": "novels_en/valid"}
DOCUMENTS, CHARACTERS = 60, 60_000  # of each validation text, at most


class Piece(NamedTuple):
    """Of a text, in one row."""

    tokens: Sequence[int]
    losses: Tensor  # of each but the first


def measure(model: OurModel, length: int, data_dir: Path, limit: int | None) -> dict[str, Any]:
    """length: it was trained with. limit: a twentieth of it is documents of each corpus; None: the validation loss
    only."""
    read = validation_losses(model, length, data_dir)
    found = {"validation": {name: [sum_of(pieces) for pieces in texts] for name, texts in read.items()}}
    if limit is None:
        return found
    far = long_rows(model, length, data_dir, max(1, limit // 20))
    return found | {
        "pairs": seen_pairs(piece for texts in read.values() for pieces in texts for piece in pieces),
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
