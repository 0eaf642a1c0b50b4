import pytest
import torch

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import measurements, relative_error, row
from gated_deltanet.bench.cases import every_op


def test_relative_error_is_zero_for_equal_and_one_for_nothing():
    x = torch.tensor([3.0, -4.0])
    assert relative_error(x, x) == 0
    assert relative_error(torch.zeros(2), x) == 1
    assert relative_error(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_error(torch.tensor([torch.nan, 1]), x) == float("inf")
    with pytest.raises(ValueError, match=r"x is \[1\], expected \[2\]"):
        relative_error(torch.zeros(1), x)


def test_every_op_and_form_is_measured_and_within_reach():
    rows = [row(*measurement) for measurement in measurements(L=20)]
    assert {found["op"].partition(",")[0] for found in rows} == set(ops.backends())
    for found in rows:
        assert found["output"] < (4e-3 if found["dtype"] == "bfloat16" else 1e-6), found
        assert found["worst_gradient"] < (1e-2 if found["dtype"] == "bfloat16" else 2e-6), found


def test_cases_are_the_same_every_time():
    for a, b in zip(every_op(L=9), every_op(L=9), strict=True):
        assert all(x is None or torch.equal(x, b.inputs[n]) for n, x in a.inputs.items())
