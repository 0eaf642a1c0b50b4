"""The gated delta rule in Triton token by token, held to the error budget; and steps in place."""

from functools import partial

import pytest
import torch
from budget import assert_within_budget, operator, outputs_and_grads
from test_gated_delta_rule import GATES, random_inputs, reference

from gated_deltanet.bench.accuracy import round_operands
from gated_deltanet.ops import (
    gated_delta_mix,
    gated_delta_mix_step_,
    gated_delta_rule,
    gated_delta_rule_step_,
    gpu,
    launches,
)

DEVICE = "cpu" if gpu.interpreted() else "cuda"
one_head = partial(random_inputs, B=1, H=1, H_v=1, d_k=20, d_v=12)


def recurrent(**inputs):
    """On the GPU if there is one; the results back on the CPU."""
    inputs = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    return tuple(x.cpu() for x in gated_delta_rule(**inputs, backend="triton-recurrent"))


def within_budget(inputs, **options):
    assert_within_budget(partial(recurrent, **options), partial(reference, **options), inputs, GATES)


@pytest.mark.parametrize("L", [1, 15, 16, 17])  # around a span between checkpoints
def test_lengths_around_a_span_are_within_budget(L):
    within_budget(one_head(L=L))


@pytest.mark.parametrize(("d_k", "d_v"), [(3, 2), (33, 65)])
def test_other_widths_are_within_budget(d_k, d_v):
    within_budget(one_head(L=7, d_k=d_k, d_v=d_v))


@pytest.mark.slow
@pytest.mark.parametrize(("d_k", "d_v"), [(1, 1), (100, 130), (128, 128), (200, 400), (256, 256)])
def test_any_width_is_within_budget(d_k, d_v):
    within_budget(one_head(L=20, d_k=d_k, d_v=d_v))


def test_value_heads_that_share_keys_are_within_budget():
    within_budget(random_inputs(B=2, L=5, H=2, H_v=4, d_k=17, d_v=9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_within_budget(dtype):
    inputs = round_operands(one_head(L=20), dtype)
    assert recurrent(**inputs)[0].dtype == dtype
    within_budget(inputs)


def test_forgetting_everything_is_within_budget():
    inputs = one_head(L=20, H_v=2, beta_max=2.0)
    inputs["log_alpha"][:, 9] = -torch.inf
    inputs["log_alpha"][:, :, 1] = -100.0
    within_budget(inputs)


def test_packed_sequences_are_within_budget():
    ends = torch.tensor([0, 0, 5, 5, 22, 39, 40, 40])  # empty ones first, inside and last
    within_budget(one_head(L=40, N=7), cu_seqlens=ends)


@pytest.mark.parametrize("sizes", [{"L": 0}, {"B": 0}, {"d_v": 0}])
def test_empty_results_and_zero_gradients(sizes):
    inputs = one_head(**{"L": 3} | sizes)
    expected = outputs_and_grads(reference, inputs)
    for name, x in outputs_and_grads(recurrent, inputs).items():
        assert torch.equal(x, expected[name]), name


def test_operator_passes_torch_opcheck():
    leaves = tuple(x.to(DEVICE).requires_grad_() for x in one_head(L=2, d_k=3, d_v=2).values())
    torch.library.opcheck(operator("gated_delta_rule", "triton-recurrent"), (*leaves, None))


def test_what_it_does_not_take_is_said():
    with pytest.raises(ValueError, match="'triton-recurrent' takes d_k up to 256, q has 257"):
        recurrent(**one_head(L=2, d_k=257))


@pytest.fixture
def steps_in_triton(monkeypatch):
    """As on a GPU: in the interpreter tensors are on the CPU, where the native library would run."""
    monkeypatch.setattr(gpu, "preferred", lambda x: gpu.refusal(x, None) is None)


def decoded(step_, tokens, parameters, state):
    """o and the state after decoding token by token, with the state in place; that autograd could tell is checked."""
    state, L = state.clone().to(DEVICE), tokens[0].shape[1]
    o = []
    for t in range(L):
        version = state._version
        o.append(step_(*(x if x is None else x[:, t].to(DEVICE) for x in tokens), *parameters, state))
        assert state._version > version
    return torch.stack(o, 1).cpu(), state.cpu()


@pytest.mark.usefixtures("steps_in_triton")
@pytest.mark.parametrize("decay", [True, False])
def test_steps_in_place_have_the_bits_of_the_sequence(decay):
    inputs = random_inputs(B=2, L=3, H=1, H_v=2, d_k=17, d_v=33)
    inputs |= {} if decay else {"log_alpha": None}
    tokens = [inputs[name] for name in ("q", "k", "v", "log_alpha", "beta")]
    for x, y in zip(decoded(gated_delta_rule_step_, tokens, (), inputs["state"]), recurrent(**inputs), strict=True):
        assert torch.equal(x, y)


@pytest.mark.usefixtures("steps_in_triton")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_of_the_mix_is_one_launch_within_budget(dtype, monkeypatch):
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    tokens = [normal(2, 4, 1, 18), normal(2, 4, 1, 18), normal(2, 4, 2, 5), 3 * normal(2, 4, 2), 3 * normal(2, 4, 2)]
    tokens, state = [x.to(dtype) for x in tokens], normal(2, 2, 18, 5)
    parameters = [x.to(DEVICE) for x in (normal(2), normal(2) - 3)]
    names = ("q", "k", "v", "a", "b", "A_log", "dt_bias", "state")
    inputs = dict(zip(names, (*tokens, *parameters, state), strict=True))
    counted, run = [], launches.run
    monkeypatch.setattr(launches, "run", lambda *call: counted.append(call) or run(*call))

    def in_steps(q, k, v, a, b, A_log, dt_bias, state):
        step_ = partial(gated_delta_mix_step_, beta_max=2.0)
        return decoded(step_, (q, k, v, a, b), (A_log.to(DEVICE), dt_bias.to(DEVICE)), state)

    def functionally(q, k, v, a, b, A_log, dt_bias, state):
        o, S = [], state.to(DEVICE)
        for t in range(q.shape[1]):
            token = (x[:, t : t + 1].to(DEVICE) for x in (q, k, v, a, b))
            o_t, S = gated_delta_mix(*token, A_log.to(DEVICE), dt_bias.to(DEVICE), S, beta_max=2.0)
            o.append(o_t)
        return torch.cat(o, 1).cpu(), S.cpu()

    exact = partial(gated_delta_mix, backend="reference", beta_max=2.0)
    for form in (in_steps, functionally):
        counted.clear()
        with torch.no_grad():
            results = form(**inputs)
        assert len(counted) == 4
        expected = exact(**{n: x.double().cpu() for n, x in inputs.items()})
        plain = exact(**{n: x.float().cpu() for n, x in inputs.items()})
        for x, y, z in zip(results, expected, plain, strict=True):
            error, of_plain = ((each - y).norm() / y.norm() for each in (x.double(), z.double()))
            assert error < (4e-3 if dtype == torch.bfloat16 else max(4 * of_plain, 8 * 2**-23))
