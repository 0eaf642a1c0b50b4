"""What a trained model is measured against, in bits per byte: gzip, and an n-gram that has seen the same text."""

import gzip
from collections.abc import Sequence

import numpy as np

BETWEEN = b"\0"  # documents


def gzip_bits(texts: Sequence[bytes]) -> float:
    """Of all texts in one file, at the best level."""
    return 8 * len(gzip.compress(BETWEEN.join(texts), 9, mtime=0)) / n_bytes(texts)


def ngram_bits(train: Sequence[bytes], texts: Sequence[bytes], order: int = 5) -> float:
    """Of a byte given the `order` bytes before it, at most 7: counts of `train`, smoothed as by Witten and Bell,

        p(s | c) = (n(c, s) + t(c) p(s | c')) / (n(c) + t(c))

    where n counts, t counts the different bytes seen after the context c, and c' is c without its first byte.
    """
    seen, read = (np.frombuffer(BETWEEN.join(x), np.uint8) for x in (train, texts))
    p = np.full(len(read), 1 / 256)
    for k in range(order + 1):
        pairs, counts = np.unique(windows(seen, k + 1), return_counts=True)
        contexts, first = np.unique(pairs >> 8, return_index=True)
        n, t = np.add.reduceat(counts, first), np.diff(first, append=len(pairs))
        now = windows(read, k + 1)
        n_s, n_c, t_c = lookup(pairs, counts, now), lookup(contexts, n, now >> 8), lookup(contexts, t, now >> 8)
        p = np.where(n_c > 0, (n_s + t_c * p) / np.maximum(n_c + t_c, 1), p)
    return float(-np.log2(p).sum()) / n_bytes(texts)


def windows(x: np.ndarray, m: int) -> np.ndarray:
    """[len(x)] uint64: each byte with the m − 1 before it, itself the lowest. In front of the first are zeros."""
    padded = np.concatenate([np.zeros(m - 1, np.uint64), x.astype(np.uint64)])
    found = np.zeros(len(x), np.uint64)
    for i in range(m):
        found = found << 8 | padded[i : i + len(x)]
    return found


def lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where it is not among the keys, which are sorted."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def n_bytes(texts: Sequence[bytes]) -> int:
    return sum(map(len, texts))
