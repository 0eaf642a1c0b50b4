"""How well the model predicts documents it has not seen."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gated_deltanet.data.corpus import Corpus
from gated_deltanet.data.rows import IGNORE, Batch, Rows, order, take

from .parallel import Place, autocast, to_device, total


class Validation(NamedTuple):
    loss: float  # nats a token
    perplexity: float  # of a token
    bits_per_byte: float  # of the text in UTF-8: tokenizers can be compared


def some_documents(corpus: Corpus, tokens: int) -> Corpus:
    """Whole documents, drawn once and for all, of at most so many positions together, or one."""
    drawn = order(len(corpus), 0)
    chosen = drawn[: max(1, int(np.searchsorted(corpus.positions[drawn].cumsum(), tokens, side="right")))]
    arrays = {name: getattr(corpus, name)[chosen] for name in ("shard", "start", "positions", "n_bytes")}
    return replace(corpus, **arrays)


@torch.no_grad()
def validate(objective: nn.Module, rows: Rows, micro: int, *, dtype: torch.dtype, place: Place) -> Validation:
    """On all rows, `micro` at a time on each rank."""
    nats = torch.zeros((), device=place.device, dtype=torch.float64)
    for batch in share(rows, micro, place):
        with autocast(place.device, dtype):
            nats += objective(*to_device(batch, place.device))
    nats = float(total(nats, place))
    loss = nats / (rows.n_learnt or 1)
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Validation(loss, perplexity, nats / math.log(2) / (int(rows.corpus.n_bytes.sum()) or 1))


def share(rows: Rows, micro: int, place: Place) -> Iterator[Batch]:
    """This rank's: as many batches as every other rank's, as FSDP needs it, if need be with nothing to predict."""
    for i in range(
        place.rank * micro, -(-rows.per_epoch // (micro * place.ranks)) * micro * place.ranks, micro * place.ranks
    ):
        n = min(micro, rows.per_epoch - i)
        yield take(rows, i, n) if n > 0 else nothing(take(rows, 0, 1))


def nothing(batch: Batch) -> Batch:
    return batch._replace(targets=torch.full_like(batch.targets, IGNORE))
