"""LongBench's scores of an answer, each in [0, 1], to the digit those of lm-eval, which needs three packages for them.

said: what the model wrote; right: one of the answers that count.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

UNMARKED = str.maketrans("", "", string.punctuation)


def qa_f1(said: str, right: str) -> float:
    """The harmonic mean of precision and recall over words, each as often as it is there."""
    here, there = Counter(plain_words(said)), Counter(plain_words(right))
    common = (here & there).total()
    return 2 * common / (here.total() + there.total()) if common else 0.0


def plain_words(text: str) -> list[str]:
    """In lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(UNMARKED)).split()


def rouge_l(said: str, right: str) -> float:
    """ROUGE-L of whole summaries as the package `rouge` has it, over sets: the words that some sentence of the one has
    in common with some sentence of the other, in order, counted once each."""
    here, there = sentences(said), sentences(right)
    if not here or not there:
        return 0.0
    common = {word for a in there for b in here for word in common_words(a, b)}
    precision, recall = (len(common) / len({word for each in side for word in each}) for side in (here, there))
    return 2 * precision * recall / (precision + recall + 1e-8)


def sentences(text: str) -> list[list[str]]:
    """The words of what full stops separate. Nothing but spaces is a sentence too, of one empty word."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def common_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """A longest common subsequence; of several the one that is found from the end, leaving out words of b first."""
    lengths = [[0] * (len(b) + 1)]
    for word in a:
        above, here = lengths[-1], [0]
        for j, other in enumerate(b):
            here.append(above[j] + 1 if word == other else max(above[j + 1], here[j]))
        lengths.append(here)
    found, i, j = [], len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            found.append(a[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def classification(said: str, right: str, classes: Sequence[str]) -> float:
    """One over the number of classes that are named, if the right one is; those in its own name do not count."""
    named = [each for each in classes if each in said and (each == right or each not in right)]
    return 1 / len(named) if right in named else 0.0


def code_similarity(said: str, right: str) -> float:
    """How alike the first line of code is, in hundredths, by matching blocks of characters."""
    lines = (line for line in said.split("\n") if line.strip() and not any(mark in line for mark in ("`", "#", "//")))
    line = next(lines, "")
    return 1.0 if line == right else round(100 * SequenceMatcher(None, line, right).ratio()) / 100
