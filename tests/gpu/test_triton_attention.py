"""Linear attention in Triton, with one decay a token or none, held to the error budget of every form."""

from functools import partial

import pytest
import torch
from budget import assert_within_budget, operator
from test_gated_delta_rule import random_inputs

from gated_deltanet.bench.accuracy import round_operands
from gated_deltanet.ops import gpu, linear_attention, linear_attention_step_

DEVICE = "cpu" if gpu.interpreted() else "cuda"


def inputs_of(**sizes):
    inputs = random_inputs(**{"B": 1, "H": 1, "H_v": 1, "d_k": 20, "d_v": 12} | sizes)
    return {name: x for name, x in inputs.items() if name != "beta"}


def in_triton(**inputs):
    """On the GPU if there is one; the results back on the CPU."""
    inputs = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    return tuple(x.cpu() for x in linear_attention(**inputs, backend="triton"))


def within_budget(inputs, **options):
    reference = partial(linear_attention, backend="reference", **options)
    assert_within_budget(partial(in_triton, **options), reference, inputs, ("log_alpha",))


@pytest.mark.parametrize("L", [1, 33])
def test_lengths_around_a_chunk_are_within_budget(L):
    within_budget(inputs_of(L=L))


@pytest.mark.slow
@pytest.mark.parametrize(("d_k", "d_v"), [(1, 1), (3, 2), (64, 65), (128, 130), (256, 400)])
def test_any_width_is_within_budget(d_k, d_v):
    within_budget(inputs_of(L=70, d_k=d_k, d_v=d_v))


def test_value_heads_that_share_keys_are_within_budget():
    within_budget(inputs_of(B=2, L=20, H=2, H_v=4, d_k=17, d_v=9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_within_budget(dtype):
    within_budget(round_operands(inputs_of(L=70, d_k=64), dtype))


@pytest.mark.parametrize("decay", [None, torch.tensor([-0.1, -torch.inf])])
def test_no_decay_and_fixed_decays_are_within_budget(decay):
    within_budget(inputs_of(L=40, H_v=2) | {"log_alpha": decay})


def test_strong_decay_is_within_budget():
    inputs = inputs_of(L=40, H_v=2)
    inputs["log_alpha"][:, 20] = -torch.inf
    inputs["log_alpha"][:, :, 1] = -100.0
    within_budget(inputs)


def test_packed_sequences_are_within_budget():
    ends = torch.tensor([0, 0, 5, 5, 39, 40, 40])  # empty ones first, inside and last
    within_budget(inputs_of(L=40, N=6), cu_seqlens=ends)


def test_steps_in_place_are_the_sequence(monkeypatch):
    monkeypatch.setattr(gpu, "preferred", lambda x: gpu.refusal(x, None) is None)
    inputs = inputs_of(B=2, L=3, H_v=2, d_k=17, d_v=33)
    o, last_state = linear_attention(**inputs, backend="reference")
    state, steps = inputs["state"].clone().to(DEVICE), []
    for t in range(3):
        token = (inputs[name][:, t].to(DEVICE) for name in ("q", "k", "v", "log_alpha"))
        steps.append(linear_attention_step_(*token, state))
    torch.testing.assert_close(torch.stack(steps, 1).cpu(), o)
    torch.testing.assert_close(state.cpu(), last_state)


def test_operator_passes_torch_opcheck():
    q, k, v, log_alpha, state = (x.to(DEVICE).requires_grad_() for x in inputs_of(L=5, d_k=3, d_v=2).values())
    leaves = (q, k, v, log_alpha.detach()[..., None].requires_grad_(), state)
    torch.library.opcheck(operator("linear_attention", "triton"), (*leaves, None))


def test_what_it_does_not_take_is_said():
    inputs = inputs_of(L=2)
    with pytest.raises(ValueError, match="'triton' takes one decay a token, log_alpha has one a key"):
        in_triton(**inputs | {"log_alpha": -inputs["k"].abs()})
    with pytest.raises(ValueError, match="'triton' takes d_k up to 256, q has 257"):
        in_triton(**inputs_of(L=2, d_k=257))
