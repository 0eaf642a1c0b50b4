"""backend="fla": flash-linear-attention's kernels behind our ops, with a stand-in where it is not installed."""

import sys
from functools import partial
from types import ModuleType

import pytest
import torch
from budget import assert_within_budget
from test_gated_delta_rule import GATES, random_inputs

from gated_deltanet.interop import fla as ours
from gated_deltanet.ops import gated_delta_mix, gated_delta_rule, gpu, linear_attention


@pytest.fixture
def stand_in(monkeypatch):
    """Packages with FLA's names whose functions are those of our interop, which have its signatures."""
    functions = {"gated_delta_rule": "chunk_gated_delta_rule", "simple_gla": "chunk_simple_gla", "gla": "chunk_gla"}
    for name in ("fla", "fla.ops", *(f"fla.ops.{module}" for module in functions)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module, name in functions.items():
        setattr(sys.modules[f"fla.ops.{module}"], name, getattr(ours, name))
    for module in ("gated_delta_rule.fla", "linear_attention.fla"):
        monkeypatch.delitem(sys.modules, f"gated_deltanet.ops.{module}", raising=False)
    monkeypatch.setattr(gpu, "fla_unusable", lambda: None)
    monkeypatch.setattr(gpu, "interpreted", lambda: True)  # takes tensors on a CPU
    yield
    for module in ("gated_delta_rule.fla", "linear_attention.fla"):
        sys.modules.pop(f"gated_deltanet.ops.{module}", None)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("ends", [None, [0, 5, 5, 20]])
def test_the_rule_is_given_to_fla_as_it_takes_it(ends):
    options = {} if ends is None else {"cu_seqlens": torch.tensor(ends, dtype=torch.int32)}
    inputs = random_inputs(B=1 if ends else 2, L=20, H=2, H_v=4, N=None if ends is None else 3)
    forms = (partial(gated_delta_rule, backend=name, **options) for name in ("fla", "reference"))
    assert_within_budget(*forms, inputs, GATES)


@pytest.mark.usefixtures("stand_in")
def test_the_mix_is_given_to_fla_as_it_takes_it():
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    inputs = {"q": normal(1, 9, 1, 6), "k": normal(1, 9, 1, 6), "v": normal(1, 9, 2, 5)}
    inputs |= {"a": normal(1, 9, 2), "b": normal(1, 9, 2), "A_log": normal(2), "dt_bias": normal(2) - 3}
    forms = (partial(gated_delta_mix, backend=name) for name in ("fla", "reference"))
    assert_within_budget(*forms, inputs, ("a", "b", "A_log", "dt_bias"))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("per_key", [False, True])
def test_linear_attention_is_given_to_fla_as_it_takes_it(per_key):
    inputs = {name: x for name, x in random_inputs(L=20, H=2, H_v=4).items() if name != "beta"}
    if per_key:
        inputs["log_alpha"] = -inputs["k"].repeat_interleave(2, 2).abs()
    forms = (partial(linear_attention, backend=name) for name in ("fla", "reference"))
    assert_within_budget(*forms, inputs, ("log_alpha",))


def test_where_it_is_missing_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"backend 'fla' cannot run: .*pip install 'gated-deltanet\[fla\]'"):
        gated_delta_rule(**random_inputs(L=2), backend="fla")
