"""Texts as the arrays of one shard."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from .tokenizer import encode, end_of_text, vocab_size

VALID = 0.01  # share of the documents that is kept for validation


class Encoded(NamedTuple):
    tokens: np.ndarray
    """End of text, document, end of text, document, …, end of text; uint16 or uint32."""
    positions: np.ndarray
    """[n], int64: of each document, one more than it has tokens."""
    n_bytes: np.ndarray
    """[n], int64: the length of its text in UTF-8."""
    valid: np.ndarray
    """[n], bool: whether it is for validation."""


def encode_documents(texts: Sequence[str], tokenizer: Tokenizer, *, valid: float, seed: int) -> Encoded:
    """valid: the share for validation."""
    documents = encode(tokenizer, texts)
    return Encoded(
        joined(documents, end_of_text(tokenizer), vocab_size(tokenizer)),
        np.array([len(each) + 1 for each in documents], np.int64),
        np.array([len(text.encode()) for text in texts], np.int64),
        np.array([is_valid(text, valid, seed) for text in texts], bool),
    )


def joined(documents: Sequence[np.ndarray], end: int, vocab_size: int) -> np.ndarray:
    largest = max((int(each.max()) for each in documents if each.size), default=0)
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer gave token {largest}, expected less than its vocab_size of {vocab_size}")
    dtype = dtype_for(vocab_size)
    ends = np.array([end], dtype)
    return np.concatenate([ends, *(part for each in documents for part in (each.astype(dtype), ends))])


def dtype_for(vocab_size: int) -> type[np.unsignedinteger]:
    """The smaller of uint16 and uint32 that holds every token."""
    if vocab_size > 2**32:
        raise ValueError(f"the vocabulary has {vocab_size} tokens, expected at most 2**32, which uint32 holds")
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def is_valid(text: str, share: float, seed: int) -> bool:
    """By its content: equal documents are on one side, and further ones move no other."""
    digest = blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") < share * 2**64
