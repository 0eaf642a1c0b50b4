import pytest
import torch
from budget import assert_within_budget

from gated_deltanet.bench.budget import Yardstick


def operands(*sizes: float, dtype=torch.float32) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return {name: (x * torch.randn(3, 5, generator=numbers)).to(dtype) for name, x in zip("abc", sizes, strict=False)}


def left_to_right(a, b, c):
    return (a * b) * c


def right_to_left(a, b, c):
    return a * (b * c)


@pytest.mark.parametrize("sizes", [(1e-22, 1e-22, 1e15), (1e-30, 1e-15, 1e12), (1e-38, 1, 1e-4)])
def test_a_product_may_underflow_whatever_multiplies_it_then(sizes):
    assert_within_budget(left_to_right, right_to_left, operands(*sizes))
    assert_within_budget(right_to_left, left_to_right, operands(*sizes))


@pytest.mark.parametrize("size", [1e-28, 1e-15, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_above_underflow_the_budget_is_relative(size, dtype):
    by = 1e-5 if dtype == torch.float32 else 0.02
    with pytest.raises(AssertionError, match=r"output 0: relative error .*, budget"):
        assert_within_budget(lambda a: a * (1 + by), lambda a: a.clone(), operands(size, dtype=dtype))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_missed(wrong):
    with pytest.raises(AssertionError, match="output 0: relative error inf"):
        assert_within_budget(lambda a: a + wrong, lambda a: a + 1, operands(1e-38))


def test_a_recurrence_right_by_luck_is_measured_at_its_neighbours():
    """1 − a for a = 1 ± a few eps is exact in float32, but rounding a changes all of it."""
    eps = torch.finfo(torch.float32).eps
    inputs = {"a": 1 + eps * torch.arange(1, 6)}
    near, far = ({"output 0": 1 - inputs["a"] * (1 + n * eps)} for n in (1, 64))
    assert Yardstick(lambda a: 1 - a, inputs).misses(near)
    assert not Yardstick(lambda a: 1 - a, inputs, neighbours=4).misses(near)
    assert Yardstick(lambda a: 1 - a, inputs, neighbours=4).misses(far)


def test_what_is_left_of_larger_terms_is_measured_by_these():
    """A sum that is exactly 0 in one order and a rounding error in another."""
    inputs = {"a": torch.full((3, 5), 0.1)}
    exact = lambda a: a - a  # noqa: E731
    results = {"output 0": torch.full((3, 5), 1e-8)}
    assert Yardstick(exact, inputs).misses(results)
    assert not Yardstick(exact, inputs, terms=lambda a: a).misses(results)
    assert Yardstick(exact, inputs, terms=lambda a: a).misses({"output 0": torch.full((3, 5), 1e-6)})
