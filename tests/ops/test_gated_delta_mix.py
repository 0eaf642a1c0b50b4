from functools import partial
from typing import Any

import pytest
import torch
from budget import assert_within_budget, cast, outputs_and_grads, relative_error
from torch.nn.functional import normalize, softplus

from gated_deltanet.ops import gated_delta_mix, gated_delta_mix_step_, gated_delta_rule
from gated_deltanet.ops.gated_delta_mix import BACKENDS

FORMS = [name for name in BACKENDS if name != "reference"]
GATES = ("a", "b", "A_log", "dt_bias")
reference = partial(gated_delta_mix, backend="reference")


def random_inputs(B=2, L=50, H=2, H_v=4, d_k=8, d_v=12, seed=0) -> dict[str, Any]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {
        "q": normal(B, L, H, d_k),
        "k": normal(B, L, H, d_k),
        "v": normal(B, L, H_v, d_v),
        "a": normal(B, L, H_v),
        "b": normal(B, L, H_v),
        "A_log": normal(H_v),
        "dt_bias": normal(H_v) - 3,
        "state": normal(B, H_v, d_k, d_v),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beta_max", [1.0, 2.0])
@pytest.mark.parametrize("L", [0, 1, 65, 300])
def test_form_is_within_budget_of_the_recurrence(form, beta_max, L):
    mix = partial(gated_delta_mix, backend=form, beta_max=beta_max)
    assert_within_budget(mix, partial(reference, beta_max=beta_max), random_inputs(L=L), GATES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_within_budget(dtype):
    inputs = cast(random_inputs(L=100), dtype)
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    inputs |= cast({n: inputs[n] for n in ("A_log", "dt_bias", "state")}, gate_dtype)
    assert_within_budget(gated_delta_mix, reference, inputs, GATES)


def test_mix_is_the_rule_on_normed_keys_and_mamba2_gates():
    inputs = cast(random_inputs(), torch.float64)

    def composed(q, k, v, a, b, A_log, dt_bias, state):
        log_alpha = -torch.exp(A_log) * softplus(a + dt_bias)
        return gated_delta_rule(
            normalize(q, dim=-1) / 8**0.5, normalize(k, dim=-1), v, log_alpha, torch.sigmoid(b), state
        )

    expected = outputs_and_grads(composed, inputs)
    for name, got in outputs_and_grads(gated_delta_mix, inputs).items():
        assert relative_error(got, expected[name]) < 1e-5, name  # normalize has no 1e-6 under the root


def test_transformers_agrees_with_norms_in_its_kernel():
    hf = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    x = random_inputs(L=100, H=3, H_v=3)
    log_alpha = -x["A_log"].exp() * softplus(x["a"] + x["dt_bias"])
    o, S = hf.torch_chunk_gated_delta_rule(
        x["q"], x["k"], x["v"], log_alpha, x["b"].sigmoid(),
        initial_state=x["state"], output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    ours_o, ours_S = gated_delta_mix(**x)
    assert relative_error(ours_o, o) < 1e-6
    assert relative_error(ours_S, S) < 1e-6


def test_packed_sequences_equal_separate_ones():
    inputs = cast(random_inputs(B=1, L=90), torch.float64)
    tokens = {n: inputs[n] for n in ("q", "k", "v", "a", "b")}
    shared = {n: inputs[n] for n in ("A_log", "dt_bias")}
    o, S = gated_delta_mix(**tokens, **shared, cu_seqlens=torch.tensor([0, 70, 70, 90]))
    for i, (start, end) in enumerate([(0, 70), (70, 70), (70, 90)]):
        o_i, S_i = gated_delta_mix(**{n: x[:, start:end] for n, x in tokens.items()}, **shared)
        assert relative_error(o[:, start:end], o_i) < 1e-12
        assert relative_error(S[i : i + 1], S_i) < 1e-12


def test_step_in_place_is_the_recurrence():
    inputs = random_inputs(L=9)
    o, S = reference(**inputs, beta_max=2.0)
    state = inputs.pop("state").clone()
    shared = (inputs.pop("A_log"), inputs.pop("dt_bias"))
    steps = [gated_delta_mix_step_(*(x[:, t] for x in inputs.values()), *shared, state, beta_max=2.0) for t in range(9)]
    assert relative_error(torch.stack(steps, 1), o) < 1e-6
    assert relative_error(state, S) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(2, 50, 5)}, "a is .* with H_v = 4, as v has"),
        ({"A_log": torch.zeros(2)}, "A_log is .* with H_v = 4, as v has"),
        ({"a": torch.full((2, 50, 4), torch.nan)}, "a holds NaN"),
        ({"dt_bias": None}, "dt_bias is a NoneType"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        gated_delta_mix(**random_inputs() | change)
