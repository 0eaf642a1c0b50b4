"""What test_gated_delta_rule.py asks of every backend in float64, and more, in the dtypes of the native one."""

from functools import partial

import pytest
import torch
from budget import assert_within_budget, cast, outputs_and_grads, relative_error
from hypothesis import given
from hypothesis import strategies as st
from test_gated_delta_rule import GATES, random_inputs, reference

from gated_deltanet.ops import gated_delta_rule, native
from gated_deltanet.ops.gated_delta_rule import cpp
from gated_deltanet.ops.native import CHECKPOINT

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
native_rule = partial(gated_delta_rule, backend="cpp")


def half(inputs):
    return inputs | cast({n: inputs[n] for n in "qkv"}, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes",
    [
        {"L": 1, "H": 3, "H_v": 3, "d_k": 20, "d_v": 36},
        {"L": 50, "H": 2, "H_v": 6, "d_k": 33, "d_v": 7},
        {"L": 100, "H": 1, "H_v": 2, "d_k": 128, "d_v": 129},
        {"B": 1, "L": 2 * CHECKPOINT + 3, "H": 1, "H_v": 1, "d_k": 40, "d_v": 100},
        {"B": 1, "L": 40, "H": 1, "H_v": 8, "d_k": 24, "d_v": 20},  # heads of one group, taken one by one
    ],
)
def test_every_instruction_set_is_within_budget(instruction_set, dtype, sizes):
    inputs = random_inputs(**sizes)
    assert_within_budget(native_rule, reference, inputs if dtype == torch.float32 else half(inputs), GATES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ends", [[0, 0, 5, 5, 70, 199, 200, 200], [0, CHECKPOINT, 2 * CHECKPOINT + 1, 600], [0, 3]])
def test_packed_sequences_are_within_budget(dtype, ends):
    inputs = random_inputs(B=1, L=ends[-1], N=len(ends) - 1)
    packed = {"cu_seqlens": torch.tensor(ends, dtype=torch.int32)}
    assert_within_budget(
        partial(native_rule, **packed),
        partial(reference, **packed),
        inputs if dtype == torch.float32 else half(inputs),
        GATES,
    )


@pytest.mark.parametrize("cut", [0, 1, 37, 64, 99, 100])
def test_cutting_a_sequence_and_carrying_the_state_is_within_budget(cut):
    def in_two(state, **tokens):
        o1, S = native_rule(**{n: x[:, :cut] for n, x in tokens.items()}, state=state)
        o2, S = native_rule(**{n: x[:, cut:] for n, x in tokens.items()}, state=S)
        return torch.cat([o1, o2], 1), S

    assert_within_budget(in_two, reference, random_inputs(L=100), GATES)


@given(
    st.integers(1, 3), st.integers(0, 300), st.integers(1, 3), st.integers(1, 3), st.integers(8, 70),
    st.integers(1, 70), st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, -0.1, -20.0, -torch.inf]), st.booleans(),
)  # fmt: skip
def test_any_shape_and_value_is_near_the_recurrence(B, L, H, group, d_k, d_v, seed, beta, log_alpha, in_half):
    """Nearness for every shape; the budget is for the cases above, where the recurrence's own error is no accident."""
    inputs = random_inputs(B, L, H, H * group, d_k, d_v, seed=seed)
    inputs["beta"][:, 1::3] = beta
    inputs["log_alpha"][:, 2::5] = log_alpha
    inputs = half(inputs) if in_half else inputs
    expected = outputs_and_grads(reference, cast(inputs, torch.float64))
    for name, got in outputs_and_grads(native_rule, inputs).items():
        assert relative_error(got, expected[name]) < (1e-2 if in_half else 2e-5), name


@pytest.mark.parametrize(
    "zero", [{"B": 0}, {"L": 0}, {"H_v": 0}, {"d_k": 0}, {"d_v": 0}, {"L": 0, "d_v": 0}, {"H": 9, "H_v": 0}], ids=str
)
def test_empty_sizes_give_what_the_recurrence_gives(zero):
    inputs = random_inputs(**{"L": 40} | zero)
    expected = outputs_and_grads(reference, inputs)
    for name, got in outputs_and_grads(native_rule, inputs).items():
        assert got.shape == expected[name].shape, name
        assert torch.allclose(got, expected[name], rtol=1e-4, atol=1e-5), name


STRIDED = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "last axis strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every other token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "part of a wider projection": lambda x: torch.cat([x, x], -1)[..., x.shape[-1] :],
    "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "batch last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}


@pytest.mark.parametrize("L", [1, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("view", STRIDED)
def test_strides_change_nothing(view, dtype, L):
    inputs = random_inputs(L=L)
    inputs = inputs if dtype == torch.float32 else half(inputs)
    expected = outputs_and_grads(native_rule, inputs)
    for name, got in outputs_and_grads(
        lambda **x: native_rule(**{n: STRIDED[view](y) for n, y in x.items()}), inputs
    ).items():
        assert torch.equal(got, expected[name]), name


def test_one_row_expanded_to_a_batch():
    inputs = random_inputs(B=1, L=50)
    several = {n: x.expand(3, *x.shape[1:]) for n, x in inputs.items()}
    for one, three in zip(native_rule(**inputs), native_rule(**several), strict=True):
        assert torch.equal(one.expand_as(three), three)


@pytest.mark.parametrize("used", [0, 1])
def test_gradients_of_one_result_alone(used):
    inputs = random_inputs(L=30)
    expected = outputs_and_grads(lambda **x: reference(**x)[used], inputs)
    for name, got in outputs_and_grads(lambda **x: native_rule(**x)[used], inputs).items():
        assert relative_error(got, expected[name]) < 1e-5, name


@pytest.mark.parametrize(
    ("dtype", "device", "message"),
    [
        (torch.float64, "cpu", "backend 'cpp' takes float32 or bfloat16, these tensors are torch.float64"),
        (torch.float16, "cpu", "backend 'cpp' takes float32 or bfloat16, these tensors are torch.float16"),
        (torch.float32, "meta", "backend 'cpp' takes tensors on the CPU, these are on meta"),
    ],
)
def test_what_it_cannot_take_is_said(dtype, device, message):
    inputs = {n: x.to(device) for n, x in random_inputs().items()}
    inputs |= cast({n: inputs[n] for n in "qkv"}, dtype)
    inputs["state"] = inputs["state"].to(torch.float64 if dtype == torch.float64 else torch.float32)
    with pytest.raises(ValueError, match=message):
        native_rule(**inputs)


def test_gradients_without_what_training_keeps():
    """A graph captured without gradients may still be differentiated."""
    inputs = random_inputs(L=40)
    expected = outputs_and_grads(native_rule, inputs)
    bare = outputs_and_grads(lambda **x: cpp.OPERATOR(*x.values(), None, False, False)[:2], inputs)
    for name, got in bare.items():
        assert torch.equal(got, expected[name]), name


def test_bad_cu_seqlens_in_a_compiled_graph_is_an_error():
    inputs = random_inputs(B=1, L=50)
    compiled = torch.compile(native_rule, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="expected to rise from 0"):
        compiled(**inputs, cu_seqlens=torch.tensor([0, 5000]))
    torch.compiler.reset()
