"""What test_linear_attention.py asks of every backend in float64, and more, in the dtypes of the native one."""

from functools import partial

import pytest
import torch
from budget import assert_within_budget, cast, outputs_and_grads
from test_linear_attention import DECAYS, GATES, random_inputs, reference

from gated_deltanet.ops import linear_attention, native
from gated_deltanet.ops.linear_attention import cpp
from gated_deltanet.ops.native import CHECKPOINT

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
native_attention = partial(linear_attention, backend="cpp")


def rounded(inputs, dtype):
    return inputs | cast({n: inputs[n] for n in "qkv"}, dtype)


@pytest.mark.parametrize("decay", DECAYS[2:])
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
def test_every_instruction_set_is_within_budget(instruction_set, decay, dtype, sizes):
    assert_within_budget(native_attention, reference, rounded(random_inputs(decay, **sizes), dtype), GATES)


@pytest.mark.parametrize("strong", [-100.0, -torch.inf])
@pytest.mark.parametrize("where", [0, 5, 15, 16, slice(None)])
def test_strong_decay_of_some_keys_is_within_budget(instruction_set, strong, where):
    inputs = random_inputs("per key", L=40, d_k=20)
    inputs["log_alpha"][:, where, 1:, 3:17] = strong
    assert_within_budget(native_attention, reference, inputs, GATES)


@pytest.mark.parametrize("decay", DECAYS[2:])
@pytest.mark.parametrize("L", [CHECKPOINT - 1, CHECKPOINT, CHECKPOINT + 1])
def test_lengths_around_a_checkpoint_are_within_budget(decay, L):
    assert_within_budget(native_attention, reference, random_inputs(decay, L=L), GATES)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ends", [[0, 0, 5, 5, 70, 199, 200, 200], [0, CHECKPOINT, 2 * CHECKPOINT + 1, 600], [0, 3]])
def test_packed_sequences_are_within_budget(decay, dtype, ends):
    inputs = rounded(random_inputs(decay, B=1, L=ends[-1], N=len(ends) - 1), dtype)
    packed = {"cu_seqlens": torch.tensor(ends, dtype=torch.int32)}
    assert_within_budget(partial(native_attention, **packed), partial(reference, **packed), inputs, GATES)


@pytest.mark.parametrize("decay", DECAYS[2:])
@pytest.mark.parametrize("cut", [0, 1, 37, 64, 99, 100])
def test_cutting_a_sequence_and_carrying_the_state_is_within_budget(decay, cut):
    def in_two(state, **tokens):
        o1, S = native_attention(**{n: x[:, :cut] for n, x in tokens.items()}, state=state)
        o2, S = native_attention(**{n: x[:, cut:] for n, x in tokens.items()}, state=S)
        return torch.cat([o1, o2], 1), S

    assert_within_budget(in_two, reference, random_inputs(decay, L=100), GATES)


@pytest.mark.parametrize(
    "zero", [{"B": 0}, {"L": 0}, {"H_v": 0}, {"d_k": 0}, {"d_v": 0}, {"d_k": 0, "d_v": 0}, {"H": 9, "H_v": 0}], ids=str
)
def test_empty_sizes_give_what_the_recurrence_gives(zero):
    inputs = random_inputs("per key", **{"L": 2 * CHECKPOINT} | zero)
    expected = outputs_and_grads(reference, inputs)
    for name, got in outputs_and_grads(native_attention, inputs).items():
        assert got.shape == expected[name].shape, name
        assert torch.allclose(got, expected[name], rtol=1e-4, atol=1e-5), name


STRIDED = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "last axis strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every other token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "part of a wider projection": lambda x: torch.cat([x, x], -1)[..., x.shape[-1] :],
}


@pytest.mark.parametrize("L", [1, 50])
@pytest.mark.parametrize("view", STRIDED)
def test_strides_change_nothing(view, L):
    inputs = random_inputs("per key", L=L)
    expected = outputs_and_grads(native_attention, inputs)
    strided = outputs_and_grads(lambda **x: native_attention(**{n: STRIDED[view](y) for n, y in x.items()}), inputs)
    for name, got in strided.items():
        assert torch.equal(got, expected[name]), name


def test_gradients_without_what_training_keeps():
    """A graph captured without gradients may still be differentiated."""
    inputs = random_inputs("per key", L=40)
    expected = outputs_and_grads(native_attention, inputs)
    for name, got in outputs_and_grads(lambda **x: cpp.OPERATOR(*x.values(), None, False)[:2], inputs).items():
        assert torch.equal(got, expected[name]), name
