"""A corpus in memory, for text that is small enough: nothing is written."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tokenizers import Tokenizer

from .corpus import Corpus, corpus_of
from .encoded import VALID, encode_documents
from .sources import describe, documents
from .tokenizer import end_of_text, fingerprint, vocab_size


class Tokenised(NamedTuple):
    train: Corpus
    valid: Corpus
    skipped: dict[str, int]
    """How many documents were skipped, by reason."""


def tokenise(
    source: str | Sequence[str],
    tokenizer: Tokenizer,
    *,
    valid: float = VALID,
    seed: int = 0,
    field: str = "text",
    separator: str | None = None,
) -> Tokenised:
    """The documents of a source as tokens; `valid` of them, chosen by content and seed, are for validation."""
    skipped: Counter[str] = Counter()
    texts = [each.text for each in documents(source, field=field, separator=separator, skipped=skipped)]
    if not texts:
        raise ValueError(f"no documents in {source}; skipped: {describe(skipped) or 'none'}")
    train, held_out = from_texts(texts, tokenizer, valid=valid, seed=seed)
    return Tokenised(train, held_out, dict(skipped))


def from_texts(
    texts: Sequence[str], tokenizer: Tokenizer, *, valid: float = VALID, seed: int = 0
) -> tuple[Corpus, Corpus]:
    """The texts as two corpora, to train and to validate."""
    encoded = encode_documents(texts, tokenizer, valid=valid, seed=seed)
    of_split = partial(
        corpus_of,
        [encoded],
        tokens=lambda _: encoded.tokens,
        vocab_size=vocab_size(tokenizer),
        end_of_text=end_of_text(tokenizer),
        fingerprint=fingerprint(tokenizer),
    )
    return of_split("train"), of_split("valid")
