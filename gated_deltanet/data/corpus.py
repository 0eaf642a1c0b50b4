"""A corpus: documents as tokens, in memory or in shards on disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .encoded import Encoded

SPLITS = ("train", "valid", "all")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Where the tokens of each document are. A shard reads: end of text, document, end of text, document, end of text.

    Of a document of m tokens the model reads end of text and the m tokens, and learns the m tokens and end of text:
    m + 1 positions. So every token is learnt, the first one too, and the loss is the length of a code for the text.
    """

    shard: np.ndarray
    """[n], the shard of each document."""
    start: np.ndarray
    """[n], in its shard, the end of text before it."""
    positions: np.ndarray
    """[n], one more than it has tokens."""
    n_bytes: np.ndarray
    """[n], the length of its text in UTF-8."""
    tokens: Callable[[int], np.ndarray]
    """The tokens of a shard, uint16 or uint32."""
    vocab_size: int
    end_of_text: int
    fingerprint: str
    """Of the tokenizer."""

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, document: int, first: int, stop: int) -> np.ndarray:
        """What positions first, …, stop - 1 of a document read, and after it what the last of them learns."""
        start = int(self.start[document])
        return self.tokens(int(self.shard[document]))[start + first : start + stop + 1]


def corpus_of(
    shards: Sequence[Encoded],
    split: str,
    tokens: Callable[[int], np.ndarray],
    *,
    vocab_size: int,
    end_of_text: int,
    fingerprint: str,
) -> Corpus:
    """The documents of one split. tokens: of a shard; those in `shards` are not looked at."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    chosen = [np.full(len(each.valid), True) if split == "all" else each.valid == (split == "valid") for each in shards]
    pairs = list(zip(shards, chosen, strict=True))
    return Corpus(
        shard=np.repeat(np.arange(len(shards)), [np.count_nonzero(mask) for mask in chosen]),
        start=joined([(np.cumsum(each.positions) - each.positions)[mask] for each, mask in pairs]),
        positions=joined([each.positions[mask] for each, mask in pairs]),
        n_bytes=joined([each.n_bytes[mask] for each, mask in pairs]),
        tokens=tokens,
        vocab_size=vocab_size,
        end_of_text=end_of_text,
        fingerprint=fingerprint,
    )


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])
