"""The rule by which claims are judged, fixed before the runs it judges.

A claim says that one system is better than another. Both are trained with the same seeds on the same data in the same
order, so each seed gives one difference, and the differences give a t-interval. There are two looks at most: at half of
the seeds, and, if that tells nothing, at all of them. Each look has the confidence at which both together err as often
as one of 95 % would (Pocock's bound).
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

CONFIDENCE = 0.971
LOOKS = (4, 8)  # seeds
CLOSE_LOOKS = (8, 16)  # of Gated DeltaNet against Mamba2, which others found within 2.5 % of each other, either way

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
NO_DIFFERENCE, CANNOT_TELL = "no difference", "cannot be told at this scale"


class Measure(NamedTuple):
    """In what a difference is measured."""

    unit: str
    least: float  # the smallest effect that counts
    same: float  # two systems do not differ if the interval lies within ± this
    digits: int = 3  # that are shown


LOG_PERPLEXITY = Measure("log perplexity", least=0.005, same=0.01)
CONTEXT_GAIN = Measure("nats", least=0.05, same=0.05)
ACCURACY = Measure("points", least=3.0, same=3.0, digits=1)
SPEED = Measure("log of tokens per second", least=0.02, same=0.05)
FLATNESS = Measure("log of tokens per second", least=0.06, same=0.06)


class Verdict(NamedTuple):
    n: int  # seeds that were looked at
    estimate: float  # the mean difference, above 0 where the claim says it is
    low: float
    high: float
    verdict: str


def judge(
    differences: Sequence[float], measure: Measure, *, at_least: bool = False, looks: Sequence[int] = LOOKS
) -> Verdict | None:
    """The verdict after the first look that tells something, or after the last; None before the first.

    differences: by seed, above 0 where the claim says they are. at_least: the claim is ≥, not >.
    """
    found = None
    for n in looks:
        if n > len(differences):
            break
        found = look(differences[:n], measure, at_least)
        if found.verdict != CANNOT_TELL:
            break
    return found


def look(differences: Sequence[float], measure: Measure, at_least: bool = False) -> Verdict:
    mean, half = interval(differences)
    low, high = mean - half, mean + half
    return Verdict(len(differences), mean, low, high, verdict(mean, low, high, measure, at_least))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of its t-interval; of one value 0."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0.0
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1))
    return mean, t_quantile((1 + CONFIDENCE) / 2, n - 1) * spread / math.sqrt(n)


def verdict(mean: float, low: float, high: float, measure: Measure, at_least: bool) -> str:
    if (low > 0 and mean >= measure.least) or (at_least and low >= -measure.least):
        return REPRODUCED
    if high < 0 and mean <= -measure.least:
        return CONTRADICTED
    if -measure.same <= low and high <= measure.same:
        return NO_DIFFERENCE
    return CANNOT_TELL


def chain(links: Sequence[str]) -> str:
    """The verdict of a claim that says several things: it holds only if each of them does."""
    for each in (CONTRADICTED, CANNOT_TELL, NO_DIFFERENCE):
        if each in links:
            return each
    return REPRODUCED


@cache
def t_quantile(p: float, df: int) -> float:
    """Of Student's distribution, p > ½, by bisection."""
    low, high = 0.0, 1e3
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, df: int) -> float:
    """t ≥ 0, by the finite sums for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(df))
    cosine, term = math.cos(angle), 1.0
    total = 0.0
    for k in range(1 if df % 2 == 0 else 2, df, 2):
        total += term * (1.0 if df % 2 == 0 else cosine)
        term *= cosine**2 * k / (k + 1)
    if df % 2 == 0:
        return 0.5 + math.sin(angle) * total / 2
    return 0.5 + (angle + math.sin(angle) * total) / math.pi
