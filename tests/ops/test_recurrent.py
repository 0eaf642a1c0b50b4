"""backend="cpp-recurrent", the exact mode: the same bits however a sequence is cut, batched, packed or shared."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from budget import assert_within_budget, outputs_and_grads, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid, normalize

from gated_deltanet import ops
from gated_deltanet.ops import (
    gated_delta_mix,
    gated_delta_mix_step_,
    gated_delta_rule,
    gated_delta_rule_step_,
)

MISSING = ops.backends()["gated_delta_rule"]["cpp-recurrent"]
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"cpp-recurrent: {MISSING}")

GATES = ("log_alpha", "beta")
SIZES = [(8, 12), (20, 36), (33, 65), (64, 31), (128, 128)]  # whole and partial vectors and panels
reference = partial(gated_delta_rule, backend="reference")
recurrent = partial(gated_delta_rule, backend="cpp-recurrent")
mix = partial(gated_delta_mix, backend="cpp-recurrent", beta_max=2.0)


def random_inputs(B=3, L=70, H=1, H_v=2, d_k=20, d_v=36, N=None, beta_max=2.0, dtype=torch.float32, seed=0):
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {
        "q": normalize(normal(B, L, H, d_k), dim=-1).to(dtype),
        "k": normalize(normal(B, L, H, d_k), dim=-1).to(dtype),
        "v": normal(B, L, H_v, d_v).to(dtype),
        "log_alpha": logsigmoid(normal(B, L, H_v) + 3),
        "beta": beta_max * normal(B, L, H_v).sigmoid(),
        "state": normal(N or B, H_v, d_k, d_v),
    }


def random_projections(dtype=torch.float32, **sizes):
    """For `gated_delta_mix`: tokens, state, and the parameters A_log and dt_bias."""
    tokens = random_inputs(**sizes)
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    a, b = (5 * normal(tokens["beta"].shape) for _ in range(2))
    tokens = {n: 3 * tokens[n] for n in "qkv"} | {"a": a, "b": b}
    H_v = a.shape[2]
    return {n: x.to(dtype) for n, x in tokens.items()}, random_inputs(**sizes)["state"], (normal(H_v), normal(H_v) - 3)


def part(inputs, tokens=slice(None), rows=slice(None), state=None):
    state = inputs["state"][rows] if state is None else state
    return {name: x[rows, tokens] for name, x in inputs.items() if name != "state"} | {"state": state}


def cut(inputs, ends):
    """The op on pieces of the sequence, the state carried from each to the next."""
    o, S = [], inputs["state"]
    for begin, end in pairwise(ends):
        piece, S = recurrent(**part(inputs, slice(begin, end), state=S))
        o.append(piece)
    return torch.cat(o, 1), S


def in_steps(step_, *parameters, state, **tokens):
    """o and the state after decoding token by token, with the state in place."""
    state, L = state.clone(), tokens["q"].shape[1]
    each = [[x if x is None else x[:, t] for x in tokens.values()] for t in range(L)]
    o = [step_(*token, *parameters, state) for token in each]
    return torch.stack(o, 1), state


def assert_same_bits(got, expected):
    for x, y in zip(got, expected, strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d_k", "d_v"), SIZES)
def test_cutting_changes_no_bit(d_k, d_v, dtype):
    inputs = random_inputs(d_k=d_k, d_v=d_v, dtype=dtype)
    inputs["log_alpha"][:, 50] = -torch.inf
    whole = recurrent(**inputs)
    for ends in ([0, 0, 70], [0, 1, 70], [0, 37, 70], [0, 32, 64, 70], [0, 69, 70], range(71)):
        assert_same_bits(cut(inputs, ends), whole)


@given(st.lists(st.integers(0, 70), max_size=5), st.integers(1, 40), st.integers(1, 40))
def test_no_cut_of_any_size_changes_a_bit(cuts, d_k, d_v):
    inputs = random_inputs(B=1, d_k=d_k, d_v=d_v)
    assert_same_bits(cut(inputs, [0, *sorted(cuts), 70]), recurrent(**inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d_k", "d_v"), SIZES)
def test_steps_in_place_have_the_bits_of_the_whole_sequence(d_k, d_v, dtype):
    inputs = random_inputs(L=40, d_k=d_k, d_v=d_v, dtype=dtype)
    inputs["log_alpha"][:, 20] = -torch.inf
    assert_same_bits(in_steps(gated_delta_rule_step_, **inputs), recurrent(**inputs))


@pytest.mark.parametrize(("H", "H_v", "N"), [(1, 1, 1), (2, 6, 5), (3, 3, 1)])
def test_steps_of_any_heads_without_decay_have_the_bits_of_the_whole_sequence(H, H_v, N):
    inputs = random_inputs(B=N, L=9, H=H, H_v=H_v) | {"log_alpha": None}
    assert_same_bits(in_steps(gated_delta_rule_step_, **inputs), recurrent(**inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("H_v", [2, 8, 17])  # gates of whole and partial vectors
def test_mix_has_the_same_bits_cut_in_steps_and_in_training(H_v, dtype):
    tokens, state, parameters = random_projections(dtype, H_v=H_v)
    step_ = partial(gated_delta_mix_step_, beta_max=2.0)
    whole = mix(*tokens.values(), *parameters, state)
    o_1, S = mix(*(x[:, :37] for x in tokens.values()), *parameters, state)
    o_2, S = mix(*(x[:, 37:] for x in tokens.values()), *parameters, S)
    assert_same_bits((torch.cat([o_1, o_2], 1), S), whole)
    assert_same_bits(in_steps(step_, *parameters, state=state, **tokens), whole)
    training = mix(*(x.requires_grad_() for x in tokens.values()), *parameters, state)
    assert_same_bits([x.detach() for x in training], whole)


@pytest.mark.parametrize("L", [1, 70])
def test_a_batch_has_the_bits_of_its_rows(L):
    inputs = random_inputs(L=L)
    o, S = recurrent(**inputs)
    for b in range(3):
        alone = slice(b, b + 1)
        assert_same_bits(recurrent(**part(inputs, rows=alone)), (o[alone], S[alone]))


@pytest.mark.parametrize("ends", [[0, 0, 5, 5, 137, 209, 210, 210], [0, 70, 140, 210]])
def test_packed_sequences_have_the_bits_of_separate_ones(ends):
    inputs = random_inputs(B=1, L=210, N=len(ends) - 1)
    o, S = recurrent(**inputs, cu_seqlens=torch.tensor(ends))
    for n, (begin, end) in enumerate(pairwise(ends)):
        alone = part(inputs, slice(begin, end), state=inputs["state"][n : n + 1])
        assert_same_bits(recurrent(**alone), (o[:, begin:end], S[n : n + 1]))


def test_value_heads_that_share_keys_have_the_bits_of_heads_that_do_not():
    inputs = random_inputs(H=2, H_v=6)
    apart = inputs | {name: inputs[name].repeat_interleave(3, 2) for name in ("q", "k")}
    assert_same_bits(recurrent(**apart), recurrent(**inputs))


def test_strides_change_no_bit():
    inputs = random_inputs(d_v=20)
    packed = torch.cat([inputs[name].expand(-1, -1, 2, -1) for name in "qkv"], -1)  # one projection, as a layer has it
    views = dict(zip("qkv", packed.split(20, -1), strict=True))
    apart = {name: x.contiguous() for name, x in views.items()}
    assert_same_bits(recurrent(**inputs | views), recurrent(**inputs | apart))


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("L", [1, 300])
def test_threads_change_no_bit(L):
    inputs = random_inputs(B=2, L=L, H=2, H_v=4, d_k=64, d_v=96)
    results = []
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        results.append(outputs_and_grads(recurrent, inputs).values())
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.usefixtures("instruction_set")
def test_every_instruction_set_keeps_its_bits_and_the_budget():
    inputs = random_inputs(d_k=33, d_v=65)
    assert_same_bits(cut(inputs, [0, 1, 37, 70]), recurrent(**inputs))
    assert_same_bits(in_steps(gated_delta_rule_step_, **inputs), recurrent(**inputs))
    assert_within_budget(recurrent, reference, inputs, GATES)


def test_a_step_takes_views_and_leaves_the_rest_of_the_state_alone():
    inputs = random_inputs(L=1, d_v=20)
    packed = torch.cat([inputs[name].expand(-1, -1, 2, -1) for name in "qkv"], -1)[:, 0]
    (q, k, v), gates = packed.split(20, -1), [inputs[name][:, 0] for name in GATES]
    states = torch.stack([inputs["state"], inputs["state"]])
    o = gated_delta_rule_step_(q, k, v, *gates, states[0])
    expected = inputs["state"].clone()
    assert torch.equal(o, gated_delta_rule_step_(q.contiguous(), k.contiguous(), v.contiguous(), *gates, expected))
    assert torch.equal(states[0], expected)
    assert torch.equal(states[1], inputs["state"])


def test_autograd_notices_a_step():
    inputs = random_inputs(L=1)
    weight = torch.ones(2, requires_grad=True)
    total = (weight[:, None, None] * inputs["state"]).sum()
    gated_delta_rule_step_(*(x[:, 0] for name, x in inputs.items() if name != "state"), inputs["state"])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_step_runs_in_inference_mode():
    with torch.inference_mode():
        inputs = random_inputs(L=40)
        assert_same_bits(in_steps(gated_delta_rule_step_, **inputs), recurrent(**inputs))


def test_a_step_compiles_whole():
    inputs = random_inputs(L=1)
    tokens = [x[:, 0] for name, x in inputs.items() if name != "state"]
    eager, compiled = inputs["state"].clone(), inputs["state"].clone()
    o = gated_delta_rule_step_(*tokens, eager)
    step_ = torch.compile(gated_delta_rule_step_, fullgraph=True, backend="aot_eager")
    assert relative_error(step_(*tokens, compiled), o) < 1e-6
    assert relative_error(compiled, eager) < 1e-6
    torch.compiler.reset()


def test_a_step_on_a_state_with_other_strides_updates_it():
    inputs = random_inputs(L=1)
    tokens = [x[:, 0] for name, x in inputs.items() if name != "state"]
    state = inputs["state"].mT.contiguous().mT
    o, S = recurrent(**inputs)
    assert relative_error(gated_delta_rule_step_(*tokens, state), o[:, 0]) < 1e-6
    assert relative_error(state, S) < 1e-6


def test_a_state_with_other_strides_changes_no_bit():
    inputs = random_inputs()
    expected = outputs_and_grads(recurrent, inputs)
    got = outputs_and_grads(lambda state, **x: recurrent(**x, state=state.mT.contiguous().mT), inputs)
    assert_same_bits(got.values(), expected.values())


@pytest.mark.parametrize("zero", [{"B": 0}, {"L": 0}, {"H_v": 0}, {"d_k": 0}, {"d_v": 0}, {"L": 0, "d_v": 0}], ids=str)
def test_empty_sizes_give_what_the_recurrence_gives(zero):
    inputs = random_inputs(**{"L": 40} | zero)
    expected = outputs_and_grads(reference, inputs)
    for name, got in outputs_and_grads(recurrent, inputs).items():
        assert got.shape == expected[name].shape, name
        assert torch.allclose(got, expected[name], rtol=1e-4, atol=1e-5), name


def test_gradients_do_not_change_the_bits_of_the_forward():
    inputs = random_inputs()
    plain = recurrent(**inputs)
    training = recurrent(**{name: x.clone().requires_grad_() for name, x in inputs.items()})
    assert_same_bits([x.detach() for x in training], plain)


@pytest.mark.parametrize("L", [0, 1, 31, 32, 33, 63, 64, 65, 200])
def test_any_length_is_within_budget(L):
    assert_within_budget(recurrent, reference, random_inputs(B=2, L=L, H=2, H_v=6), GATES)


@pytest.mark.parametrize(("d_k", "d_v"), [*SIZES, (1, 1), (200, 400)])
def test_any_width_is_within_budget(d_k, d_v):
    assert_within_budget(recurrent, reference, random_inputs(B=1, L=80, d_k=d_k, d_v=d_v), GATES)


def test_bfloat16_is_within_budget():
    assert_within_budget(recurrent, reference, random_inputs(B=1, dtype=torch.bfloat16), GATES)


@pytest.mark.parametrize("strong", [-100.0, -1000.0, -torch.inf])
@pytest.mark.parametrize("where", [slice(20, 21), slice(32, 33), slice(None)])
def test_strong_decay_is_within_budget(strong, where):
    inputs = random_inputs(B=1)
    inputs["log_alpha"][:, where] = strong
    assert_within_budget(recurrent, reference, inputs, GATES)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_beta_at_its_bounds_is_within_budget(beta):
    inputs = random_inputs(B=1)
    inputs["beta"][:, ::2] = beta
    assert_within_budget(recurrent, reference, inputs, GATES)


@pytest.mark.parametrize("share", [4, 40])
def test_repeated_reflections_are_within_budget(share):
    """The worst case of chunks (docs/derivation.md) is none of the recurrence's."""
    inputs = random_inputs(B=1, L=200, d_k=128, d_v=16)
    inputs["k"] = normalize(inputs["k"] + share * inputs["k"][:, :1], dim=-1)
    inputs["beta"].fill_(2.0)
    assert_within_budget(recurrent, reference, inputs, GATES)


def test_packed_sequences_are_within_budget():
    ends = torch.tensor([0, 0, 5, 5, 70, 199, 200, 200])
    inputs = random_inputs(B=1, L=200, N=7)
    packed = {"cu_seqlens": ends}
    assert_within_budget(partial(recurrent, **packed), partial(reference, **packed), inputs, GATES)
