import random

import pytest

from gated_deltanet.reproduce.verdicts import (
    ACCURACY,
    CANNOT_TELL,
    CONTRADICTED,
    LOG_PERPLEXITY,
    NO_DIFFERENCE,
    REPRODUCED,
    Measure,
    Verdict,
    chain,
    judge,
    t_quantile,
)


def judged(differences: list[float], measure: Measure = LOG_PERPLEXITY, *, at_least: bool = False) -> Verdict:
    found = judge(differences, measure, at_least=at_least)
    assert found
    return found


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (7, 2.36462), (15, 2.13145)]
)
def test_quantiles_are_those_of_the_tables(df, quantile):
    assert t_quantile(0.975, df) == pytest.approx(quantile, rel=1e-5)


@pytest.mark.parametrize(
    ("differences", "measure", "verdict"),
    [
        ([0.02, 0.021, 0.019, 0.02], LOG_PERPLEXITY, REPRODUCED),
        ([-0.02, -0.021, -0.019, -0.02], LOG_PERPLEXITY, CONTRADICTED),
        ([0.002, 0.0021, 0.0019, 0.002], LOG_PERPLEXITY, NO_DIFFERENCE),  # there, but too small to count
        ([0.001, -0.001, 0.002, -0.002], LOG_PERPLEXITY, NO_DIFFERENCE),
        ([0.3, -0.2, 0.1, -0.1], LOG_PERPLEXITY, CANNOT_TELL),
        ([5.0, 6.0, 5.5, 5.2], ACCURACY, REPRODUCED),
        ([1.0, 1.1, 0.9, 1.0], ACCURACY, NO_DIFFERENCE),
    ],
)
def test_verdicts_of_known_differences(differences, measure, verdict):
    assert judged(differences, measure).verdict == verdict


def test_at_least_as_good_holds_for_equals_and_not_for_worse():
    equal, worse = [0.001, -0.001, 0.002, -0.002], [-0.02, -0.021, -0.019, -0.02]
    assert judged(equal, at_least=True).verdict == REPRODUCED
    assert judged(worse, at_least=True).verdict == CONTRADICTED


def test_there_are_two_looks_at_most_and_none_before_the_first():
    assert judge([0.02] * 3, LOG_PERPLEXITY) is None
    clear, unclear = [0.02, 0.021, 0.019, 0.02], [0.05, -0.02, 0.04, -0.01]
    assert judged([*clear, *[-0.5] * 4]).n == 4  # told: what comes later does not count
    assert judged([*unclear, 0.02]).n == 4
    assert judged([*unclear, *clear, *clear]).n == 8


def test_without_an_effect_one_verdict_in_twenty_at_most_finds_one():
    rng, found, n = random.Random(0), 0, 4000
    for _ in range(n):
        differences = [rng.gauss(0, 0.03) for _ in range(8)]
        found += judged(differences).verdict in (REPRODUCED, CONTRADICTED)
    assert 0.03 < found / n < 0.06


def test_a_chain_holds_only_if_each_link_does():
    assert chain([REPRODUCED, REPRODUCED]) == REPRODUCED
    assert chain([REPRODUCED, NO_DIFFERENCE]) == NO_DIFFERENCE
    assert chain([NO_DIFFERENCE, CANNOT_TELL]) == CANNOT_TELL
    assert chain([CANNOT_TELL, CONTRADICTED, REPRODUCED]) == CONTRADICTED
