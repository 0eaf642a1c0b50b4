from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gated_deltanet.models import sampling
from gated_deltanet.models.sampling import Sampling, draw, inverse_cdf

EXAMPLE = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()


def generators(n, seed=0):
    return [torch.Generator().manual_seed(seed + i) for i in range(n)]


def random_logits(N=4, V=60):
    return 3 * torch.randn(N, V, generator=torch.Generator().manual_seed(2))


def left(logits):
    return (logits > -torch.inf).nonzero()[:, -1].tolist()


@pytest.mark.parametrize(("k", "expected"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_top_k_leaves_the_k_largest(k, expected):
    assert left(sampling.top_k(EXAMPLE, k)) == expected


@pytest.mark.parametrize(("p", "n"), [(1e-6, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.84, 3), (0.999, 5)])
def test_top_p_leaves_the_fewest_that_reach_p(p, n):
    assert left(sampling.top_p(EXAMPLE, p)) == list(range(n))


@pytest.mark.parametrize(("p", "n"), [(0.0, 5), (0.12, 5), (0.13, 4), (0.26, 3), (0.7, 2), (0.8, 1), (1.0, 1)])
def test_min_p_leaves_what_is_not_too_far_below_the_first(p, n):
    assert left(sampling.min_p(EXAMPLE, p)) == list(range(n))


def test_repetition_penalty_makes_seen_tokens_less_probable():
    logits, seen = torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[True, True, False]])
    assert sampling.repetition_penalty(logits, seen, 2.0).tolist() == [[1.0, -4.0, 1.0]]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_filters_agree_with_transformers(options):
    theirs = pytest.importorskip("transformers")
    warpers = {
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    logits = expected = random_logits()
    for name, value in options.items():
        expected = warpers[name](value)(None, expected)
    torch.testing.assert_close(sampling.warped(logits, Sampling(**options)), expected)


def test_repetition_penalty_agrees_with_transformers():
    theirs = pytest.importorskip("transformers")
    logits, ids = random_logits(), torch.randint(60, (4, 9), generator=torch.Generator().manual_seed(3))
    seen = torch.zeros(4, 60, dtype=torch.bool).scatter(1, ids, True)
    expected = theirs.RepetitionPenaltyLogitsProcessor(1.7)(ids, logits)
    torch.testing.assert_close(sampling.repetition_penalty(logits, seen, 1.7), expected)


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.5, 3.0]), min_size=1, max_size=9).filter(any))
def test_tokens_are_drawn_as_often_as_they_are_probable(weights):
    p, M = torch.tensor([weights]) / sum(weights), 1000
    uniform = (torch.arange(M, dtype=torch.float64) + 0.5) / M
    drawn = inverse_cdf(p.expand(M, -1), uniform).bincount(minlength=len(weights))
    assert ((drawn / M - p[0]).abs() <= 1.001 / M).all()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert (p[0, inverse_cdf(p.expand(2, -1), ends)] > 0).all()


def test_greedy_takes_the_largest_and_draws_nothing():
    logits, own = random_logits(), generators(4)
    before = [g.get_state() for g in own]
    assert torch.equal(draw(logits, Sampling(temperature=0), own, None), logits.argmax(-1))
    assert all(torch.equal(g.get_state(), state) for g, state in zip(own, before, strict=True))
    seen = torch.nn.functional.one_hot(logits.argmax(-1), 60).bool()
    penalised = draw(logits, Sampling(temperature=0, repetition_penalty=100.0), own, seen)
    assert torch.equal(penalised, logits.topk(2).indices[:, 1])


def test_row_draws_the_same_whatever_the_others_are():
    logits, options = random_logits(), Sampling(top_k=30)
    together = draw(logits, options, generators(4), None)
    alone = [draw(logits[i : i + 1], options, generators(1, seed=i), None) for i in range(4)]
    assert torch.equal(together, torch.cat(alone))
    assert not torch.equal(together, draw(logits, options, generators(4, seed=7), None))


def test_bfloat16_logits_and_those_that_are_minus_infinity():
    logits = random_logits().bfloat16().masked_fill(torch.arange(60) > 2, -torch.inf)
    assert draw(logits, Sampling(top_p=0.9), generators(4), None).max() <= 2
    with pytest.raises(ValueError, match="logits hold NaN"):
        draw(torch.full((1, 3), torch.nan), Sampling(), generators(1), None)


def test_list_of_stop_strings_is_as_good_as_a_tuple():
    assert Sampling(stop=["a", "b"]) == Sampling(stop=("a", "b"))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, expected at least 0"),
        ({"temperature": "1"}, "temperature is '1', expected at least 0"),
        ({"top_k": 0}, "top_k is 0, expected a whole number, at least 1, or None"),
        ({"top_p": 0.0}, "top_p is 0.0, expected more than 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1, expected more than 0 and at most 1"),
        ({"min_p": 1.5}, "min_p is 1.5, expected at least 0 and at most 1"),
        ({"min_p": float("nan")}, "min_p is nan, expected at least 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, expected more than 0"),
        ({"seed": -1}, "seed is -1, expected a whole number, at least 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808, expected at most 9223372036854775807"),
        ({"max_tokens": 0}, "max_tokens is 0, expected a whole number, at least 1"),
        ({"stop": "\n"}, r"stop is '\\n', expected a tuple of strings"),
        ({"stop": ("a", "")}, r"stop is \('a', ''\), expected a tuple of strings that are not empty"),
    ],
    ids=str,
)
def test_option_that_makes_no_sense_is_named(option, expected):
    with pytest.raises(ValueError, match=f"Sampling: {expected}"):
        replace(Sampling(), **option)
