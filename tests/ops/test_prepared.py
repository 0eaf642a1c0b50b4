"""Preparations: made once for a layout of the inputs, never used for another, and never instead of a check."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pytest
import torch
from budget import relative_error
from torch.nn import Parameter
from torch.nn.functional import logsigmoid, normalize

from gated_deltanet.ops import gated_delta_mix, gated_delta_mix_step_, gated_delta_rule_step_, native
from gated_deltanet.ops import prepared as preparing
from gated_deltanet.ops.prepared import prepared


class Inputs(NamedTuple):
    x: torch.Tensor
    scale: float = 1


def counting():
    """A function that is prepared, and the list of the inputs it was prepared for."""
    made = []

    @prepared
    def first_number(inputs: Inputs):
        made.append(inputs)
        return lambda inputs: inputs.x.flatten()[0].item() * inputs.scale

    return lambda *inputs: first_number(Inputs(*inputs)), made


def test_a_layout_is_prepared_once_whatever_the_values():
    first_number, made = counting()
    assert [first_number(torch.full((2, 3), float(i))) for i in range(4)] == [0, 1, 2, 3]
    assert len(made) == 1


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 2),
        torch.ones(2, 3, 1),
        torch.ones(3, 2).mT,
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        Parameter(torch.ones(2, 3), requires_grad=False),
        torch.ones(2, 3, dtype=torch.complex64).conj().imag,
    ],
    ids=["shape", "axes", "strides", "dtype", "gradient", "parameter", "lazily negated"],
)
def test_another_layout_is_prepared_anew(other):
    first_number, made = counting()
    first_number(torch.ones(2, 3))
    first_number(other)
    assert len(made) == 2


@pytest.mark.usefixtures("restored_threads")
def test_other_circumstances_are_prepared_anew():
    first_number, made = counting()
    x = torch.ones(2, 3)
    first_number(x)
    with torch.no_grad():
        first_number(x)
    torch.set_num_threads(torch.get_num_threads() + 1)
    first_number(x)
    first_number(x, 2)
    assert len(made) == 4


def test_who_looks_on_sees_the_preparation():
    first_number, made = counting()
    x = torch.ones(2, 3)
    for _ in range(3):
        with torch.device("cpu"):
            first_number(x)
    assert len(made) == 3


def test_what_cannot_be_a_key_reaches_the_preparation():
    first_number, made = counting()
    with pytest.raises(AttributeError, match="flatten"):
        first_number([1.0])
    assert len(made) == 1


def test_preparations_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(preparing, "KEPT", 4)
    first_number, made = counting()
    for size in (1, 2, 3, 4, 5, 5, 5):
        first_number(torch.ones(size))
    assert len(made) == 5


def token(N=1, H=2, H_v=4, d_k=20, d_v=36, seed=0):
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {
        "q": normalize(normal(N, H, d_k), dim=-1),
        "k": normalize(normal(N, H, d_k), dim=-1),
        "v": normal(N, H_v, d_v),
        "log_alpha": logsigmoid(normal(N, H_v)),
        "beta": normal(N, H_v).sigmoid(),
        "state": normal(N, H_v, d_k, d_v),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 2, 21)}, "k is .* with d_k = 21, as q has"),
        ({"k": torch.zeros(1, 3, 20)}, "k is .* with H = 2, as q has"),
        ({"v": torch.zeros(1, 5, 36)}, "v has 5 heads, expected a multiple|log_alpha is .* with H_v = 5"),
        ({"v": torch.zeros(1, 4, 36).half()}, "v is torch.float16, expected torch.float32, as q is"),
        ({"beta": torch.zeros(1, 4, dtype=torch.int64)}, "beta is torch.int64, expected float32"),
        ({"beta": torch.tensor([[0.0, 1.0, torch.nan, 0.0]])}, "beta holds NaN"),
        ({"log_alpha": torch.full((1, 4), torch.nan)}, "log_alpha holds NaN"),
        ({"log_alpha": torch.zeros(1, 4, device="meta")}, "log_alpha is on meta, expected cpu"),
        ({"state": torch.zeros(1, 4, 36, 20)}, r"state is \[1, 4, 36, 20\], expected"),
        ({"state": torch.zeros(1, 4, 20, 36).double()}, "state is torch.float64, expected torch.float32"),
        ({"state": [0.0]}, "state is a list, expected a tensor"),
        ({"q": torch.zeros(1, 2, 20, requires_grad=True)}, "no_grad"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_step_like_the_last_but_for_one_thing_is_still_refused(change, message):
    inputs = token()
    gated_delta_rule_step_(**inputs)
    before = inputs["state"].clone()
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            gated_delta_rule_step_(**inputs | change)
    assert torch.equal(inputs["state"], before)


def test_a_mix_names_the_gate_that_is_no_number():
    x = token()
    inputs = (x["q"], x["k"], x["v"], x["log_alpha"], x["beta"])
    parameters = torch.zeros(4), torch.zeros(4)
    gated_delta_mix_step_(*inputs, *parameters, x["state"])
    before = x["state"].clone()
    with pytest.raises(ValueError, match="gated_delta_mix_step_: b holds NaN"):
        gated_delta_mix_step_(*inputs[:4], torch.full((1, 4), torch.nan), *parameters, x["state"])
    assert torch.equal(x["state"], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_other_strides_has_the_same_bits(dtype):
    inputs = token(N=3)
    inputs |= {n: inputs[n].to(dtype) for n in "qkv"}
    expected, state = gated_delta_rule_step_(**inputs | {"state": inputs["state"].clone()}), inputs["state"].clone()
    views = {n: inputs[n].mT.contiguous().mT for n in ("q", "k", "v", "log_alpha", "beta")}
    assert torch.equal(gated_delta_rule_step_(**views, state=state), expected)


def test_preparations_hold_no_input():
    inputs = token(N=7)
    gated_delta_rule_step_(**inputs)
    alive = [weakref.ref(x) for x in inputs.values()]
    del inputs
    gc.collect()
    assert not any(x() is not None for x in alive)


def decoded(seed):
    inputs = token(N=2, H=4, H_v=8, d_k=64, d_v=64, seed=seed)
    return torch.stack([gated_delta_rule_step_(**inputs) for _ in range(50)])


def test_python_threads_that_share_a_preparation_do_not_disturb_each_other():
    expected = [decoded(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for seed, o in enumerate(pool.map(decoded, [*range(4)] * 3)):
            assert torch.equal(o, expected[seed % 4])


def test_a_step_without_the_library_needs_no_preparation_of_it(monkeypatch):
    inputs = token()
    expected = gated_delta_rule_step_(**inputs | {"state": inputs["state"].clone()})
    for name in ("_library", "_reason"):
        monkeypatch.setattr(native, name, getattr(native, name))
    native.load(None)
    assert relative_error(gated_delta_rule_step_(**inputs), expected) < 1e-6


def mix_of_one_token(dtype=torch.float32):
    x = {n: z if n == "state" else z[:, None] for n, z in token(N=2).items()}
    parameters = torch.linspace(-1, 1, 4), torch.linspace(-3, -2, 4)
    return *(x[n].to(dtype) for n in "qkv"), x["log_alpha"], x["beta"], *parameters, x["state"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prepared_token_of_a_mix_has_the_bits_of_an_unprepared_one(dtype):
    inputs = mix_of_one_token(dtype)
    with torch.device("cpu"):  # somebody looks on
        expected = gated_delta_mix(*inputs, backend="cpp-recurrent")
    state = inputs[-1].clone()
    for _ in range(2):
        for got, x in zip(gated_delta_mix(*inputs), expected, strict=True):
            assert torch.equal(got, x)
    assert torch.equal(inputs[-1], state)


def test_a_prepared_token_of_a_mix_is_still_checked():
    inputs = list(mix_of_one_token())
    gated_delta_mix(*inputs)
    inputs[3] = torch.full((2, 1, 4), torch.nan)
    with pytest.raises(ValueError, match="gated_delta_mix: a holds NaN"):
        gated_delta_mix(*inputs)
