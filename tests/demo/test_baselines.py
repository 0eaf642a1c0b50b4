import gzip
from collections import Counter
from math import log2

import pytest

from gated_deltanet.demo.baselines import gzip_bits, ngram_bits

TRAIN, READ = [b"abracadabra", b"abc"], [b"abrac", b"zab"]


def test_gzip_is_gzip():
    assert gzip_bits([b"abab" * 50]) == 8 * len(gzip.compress(b"abab" * 50, 9, mtime=0)) / 200


def by_hand(order: int) -> float:
    """Byte by byte, from dictionaries."""
    seen, read = (b"\0" * order + b"\0".join(texts) for texts in (TRAIN, READ))
    bits = 0.0
    for i in range(order, len(read)):
        p = 1 / 256
        for k in range(order + 1):
            context = read[i - k : i]
            after = Counter(seen[j] for j in range(order, len(seen)) if seen[j - k : j] == context)
            n, t = after.total(), len(after)
            p = (after[read[i]] + t * p) / (n + t) if n else p
        bits -= log2(p)
    return bits / sum(map(len, READ))


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_ngram_is_what_counting_by_hand_gives(order):
    assert ngram_bits(TRAIN, READ, order) == pytest.approx(by_hand(order), rel=1e-12)


def test_more_context_helps_on_repetitive_text():
    text = [b"the cat sat on the mat. " * 40]
    assert ngram_bits(text, text, 4) < 0.5 * ngram_bits(text, text, 1)
