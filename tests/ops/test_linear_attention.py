from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused, takes
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from gated_deltanet.ops.linear_attention import BACKENDS, linear_attention, linear_attention_step_
from gated_deltanet.ops.linear_attention.chunkwise import CHUNK, CHUNK_PER_KEY

FORMS = [name for name in BACKENDS if name != "reference"]
DECAYS = ["none", "fixed", "scalar", "per key"]
GATES = ("log_alpha",)
reference = partial(linear_attention, backend="reference")


def random_inputs(decay="scalar", B=2, L=50, H=2, H_v=6, d_k=8, d_v=12, N=None, seed=0) -> dict[str, Any]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    shape = {"none": (0,), "fixed": (H_v,), "scalar": (B, L, H_v), "per key": (B, L, H_v, d_k)}[decay]
    return {
        "q": normal(B, L, H, d_k),
        "k": normal(B, L, H, d_k),
        "v": normal(B, L, H_v, d_v),
        "log_alpha": None if decay == "none" else logsigmoid(normal(shape) + 3),
        "state": normal(N or B, H_v, d_k, d_v),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("decay", "L"),
    [(decay, C + i) for decay, C in (("scalar", CHUNK), ("per key", CHUNK_PER_KEY)) for i in (-C, 1 - C, -1, 0, 1)]
    + [(decay, 1000) for decay in DECAYS],
)
def test_form_is_within_budget_of_the_recurrence(form, decay, L):
    small = {"H": 1, "H_v": 2, "d_k": 4} if L == 1000 else {}  # the parallel form holds [L, L, d_k]
    inputs = random_inputs(decay, L=L, B=1 + (L < 1000), **small)
    assert_within_budget(partial(linear_attention, backend=form), reference, inputs, GATES)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_within_budget(form, decay, dtype):
    skip_if_refused(form, dtype)
    inputs = cast(random_inputs(decay, L=100), dtype)
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    inputs |= cast({n: inputs[n] for n in ("log_alpha", "state")}, gate_dtype)
    o, S = linear_attention(**inputs, backend=form)
    assert o.dtype == dtype
    assert S.dtype == gate_dtype
    assert_within_budget(partial(linear_attention, backend=form), reference, inputs, GATES)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS[2:])
@pytest.mark.parametrize("strong", [-100.0, -1000.0, -torch.inf])
@pytest.mark.parametrize("where", [slice(20, 21), slice(90, 91), slice(None)])
def test_strong_decay_is_within_budget(form, decay, strong, where):
    inputs = random_inputs(decay, L=100)
    inputs["log_alpha"][(slice(None), where, slice(1, None), *[slice(2, None)] * (decay == "per key"))] = strong
    assert_within_budget(partial(linear_attention, backend=form), reference, inputs, GATES)


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize(("decay", "dtype"), [*zip(DECAYS, [torch.int32, torch.int64] * 2, strict=True)])
def test_packed_sequences_equal_separate_ones(form, decay, dtype):
    skip_if_refused(form, torch.float64)
    ends = [0, 0, 5, 5, 70, 199, 200, 200]  # empty ones first, inside and last
    inputs = cast(random_inputs(decay, B=1, L=200, N=7), torch.float64)
    packed = outputs_and_grads(
        partial(linear_attention, backend=form, cu_seqlens=torch.tensor(ends, dtype=dtype)), inputs
    )

    def separately(q, k, v, log_alpha, state):
        parts = []
        for i, (a, b) in enumerate(pairwise(ends)):
            decays = log_alpha[:, a:b] if decay in DECAYS[2:] else log_alpha
            parts.append(reference(q[:, a:b], k[:, a:b], v[:, a:b], decays, state[i : i + 1]))
        return torch.cat([o for o, _ in parts], 1), torch.cat([S for _, S in parts])

    for name, expected in outputs_and_grads(separately, inputs).items():
        assert relative_error(packed[name], expected) < 1e-12, name


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS[2:])
@pytest.mark.parametrize("cut", [0, 1, 37, 64, 99, 100])
def test_cutting_a_sequence_and_carrying_the_state_changes_nothing(form, decay, cut):
    skip_if_refused(form, torch.float64)
    inputs = cast(random_inputs(decay, L=100), torch.float64)
    state = inputs.pop("state")
    o, S = linear_attention(**inputs, state=state, backend=form)
    o1, S1 = linear_attention(**{n: x[:, :cut] for n, x in inputs.items()}, state=state, backend=form)
    o2, S2 = linear_attention(**{n: x[:, cut:] for n, x in inputs.items()}, state=S1, backend=form)
    assert relative_error(torch.cat([o1, o2], 1), o) < 1e-12
    assert relative_error(S2, S) < 1e-12


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_gradcheck(form, decay):
    skip_if_refused(form, torch.float64)
    inputs = cast(random_inputs(decay, B=2, L=5, H=1, H_v=2, d_k=3, d_v=2), torch.float64)
    leaves = [x.requires_grad_() if x is not None else None for x in inputs.values()]
    assert torch.autograd.gradcheck(partial(linear_attention, backend=form), leaves)


@pytest.mark.parametrize("form", BACKENDS)
def test_no_decay_is_causal_attention_without_softmax(form):
    skip_if_refused(form, torch.float64)
    q, k, v, *_ = cast(random_inputs(L=150, H=3, H_v=3), torch.float64).values()
    o, S = linear_attention(q, k, v, backend=form)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    assert relative_error(o, ((q @ k.mT).tril() @ v).transpose(1, 2)) < 1e-13
    assert relative_error(S, k.mT @ v) < 1e-13


@pytest.mark.parametrize("form", BACKENDS)
def test_a_decay_per_key_is_a_sum_over_keys_of_scalar_decays(form):
    skip_if_refused(form, torch.float64)
    q, k, v, log_alpha, state = cast(random_inputs("per key", L=40), torch.float64).values()
    o, S = linear_attention(q, k, v, log_alpha, state, backend=form)
    keys = [slice(c, c + 1) for c in range(q.shape[-1])]
    parts = [reference(q[..., c], k[..., c], v, log_alpha[..., c.start], state[:, :, c]) for c in keys]
    assert relative_error(o, torch.stack([part[0] for part in parts]).sum(0)) < 1e-13
    assert relative_error(S, torch.cat([part[1] for part in parts], 2)) < 1e-13


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("decay", ["fixed", "scalar"])
def test_the_same_decay_in_a_larger_shape_is_the_same(form, decay):
    skip_if_refused(form, torch.float64)
    inputs = cast(random_inputs(decay, L=70), torch.float64)
    expected = linear_attention(**inputs, backend=form)
    token = inputs["log_alpha"].expand(2, 70, 6)
    for log_alpha in (token, token[..., None].expand(2, 70, 6, 8)):
        for got, wanted in zip(linear_attention(**inputs | {"log_alpha": log_alpha}), expected, strict=True):
            assert relative_error(got, wanted) < 1e-13


def test_transformers_mamba2_agrees():
    hf = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    inputs = random_inputs(L=150)
    dt, A = torch.rand(2, 150, 6), -torch.rand(6) * 4
    y, h = hf.mamba2_chunk_scan(
        inputs["v"], dt, A, inputs["k"], inputs["q"], 32, initial_states=inputs["state"].mT, return_final_states=True
    )
    o, S = linear_attention(**inputs | {"v": dt[..., None] * inputs["v"], "log_alpha": dt * A})
    assert relative_error(o, y) < 1e-6
    assert relative_error(S, h.mT) < 1e-6


@pytest.mark.parametrize("decay", DECAYS)
def test_step_in_place_is_the_recurrence(decay):
    *tokens, log_alpha, state = random_inputs(decay, L=9).values()
    o, S = reference(*tokens, log_alpha, state)
    steps = []
    for t in range(9):
        log_alpha_t = log_alpha[:, t] if decay in DECAYS[2:] else log_alpha
        steps.append(linear_attention_step_(*(x[:, t] for x in tokens), log_alpha_t, state))
    assert relative_error(torch.stack(steps, 1), o) < 1e-6
    assert relative_error(state, S) < 1e-6


@pytest.mark.parametrize("name", ["q", "log_alpha"])
def test_step_refuses_gradients(name):
    inputs = {n: x if n == "state" else x[:, 0] for n, x in random_inputs(L=1).items()}
    with pytest.raises(ValueError, match="no_grad"):
        linear_attention_step_(**inputs | {name: inputs[name].requires_grad_()})


@pytest.mark.parametrize("decay", DECAYS[2:])
@pytest.mark.parametrize("log_alpha", [-100.0, -1e-3])
def test_a_hundred_thousand_tokens_stay_finite(decay, log_alpha):
    inputs = random_inputs(decay, B=1, L=100_000, H=1, H_v=1, d_k=4, d_v=4)
    inputs["log_alpha"].fill_(log_alpha)
    for name, x in outputs_and_grads(linear_attention, inputs).items():
        assert x.isfinite().all(), name


@given(
    st.sampled_from(DECAYS), st.integers(1, 3), st.integers(0, 150), st.integers(1, 3), st.integers(1, 3),
    st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.sampled_from([0.0, -0.1, -20.0, -torch.inf]),
)  # fmt: skip
def test_any_shape_and_value_agrees_with_the_recurrence(decay, B, L, H, group, d_k, d_v, seed, strong):
    inputs = cast(random_inputs(decay, B, L, H, H * group, d_k, d_v, seed=seed), torch.float64)
    if decay in DECAYS[2:]:
        inputs["log_alpha"][:, 2::5] = strong
    expected = outputs_and_grads(reference, inputs)
    for form in (form for form in FORMS if takes(form, torch.float64)):
        for name, got in outputs_and_grads(partial(linear_attention, backend=form), inputs).items():
            assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), f"{form} {name}"


@given(st.sampled_from(DECAYS), st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_any_packing_agrees_with_the_recurrence(decay, lengths):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    inputs = random_inputs(decay, B=1, L=sum(lengths), N=len(lengths), H=1, H_v=2, d_k=3, d_v=2)
    inputs = cast(inputs, torch.float64)
    expected = outputs_and_grads(partial(reference, cu_seqlens=cu_seqlens), inputs)
    for name, got in outputs_and_grads(partial(linear_attention, cu_seqlens=cu_seqlens), inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(50, 2, 8)}, r"k is \[50, 2, 8\], expected 4 axes \[B, L, H, d_k\]"),
        ({"k": torch.zeros(2, 50, 3, 8)}, r"k is .* with H = 2, as q has"),
        ({"v": torch.zeros(2, 50, 5, 12)}, "v has 5 heads, expected a multiple of the 2"),
        ({"v": torch.zeros(2, 50, 6, 12, dtype=torch.bfloat16)}, "v is torch.bfloat16, expected torch.float32, as q"),
        ({"log_alpha": -0.5}, r"log_alpha is a float, expected a tensor"),
        (
            {"log_alpha": torch.zeros(50, 6)},
            r"log_alpha is \[50, 6\], expected a tensor \[H_v\] or \[B, L, H_v\] or \[B, L, H",
        ),
        ({"log_alpha": torch.zeros(2)}, r"log_alpha is \[2\], expected \[H_v\] with H_v = 6, as v has"),
        ({"log_alpha": torch.zeros(2, 50, 6, 12)}, "log_alpha is .* with d_k = 8, as q has"),
        ({"log_alpha": torch.full((6,), 0.5)}, "log_alpha holds 0.5, expected values ≤ 0"),
        ({"log_alpha": torch.full((2, 50, 6, 8), torch.nan)}, "log_alpha holds NaN"),
        ({"state": torch.zeros(2, 6, 12, 8)}, r"state is \[2, 6, 12, 8\], expected .* = \[2, 6, 8, 12\]"),
        ({"cu_seqlens": torch.tensor([0, 50])}, "the batch has 2 rows"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference"),
    ],
)
def test_bad_input_is_named(change, message):
    inputs = random_inputs() | {"log_alpha": None}
    with pytest.raises(ValueError, match=message):
        linear_attention(**inputs | change)


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS[2:])
def test_operator_passes_torch_opcheck(form, decay):
    inputs = random_inputs(decay, L=5, H=1, H_v=2, d_k=3, d_v=2)
    inputs["log_alpha"] = inputs["log_alpha"].view(2, 5, 2, -1)
    leaves = tuple(x.requires_grad_() for x in inputs.values())
    flags = (True,) if form == "cpp" else ()
    torch.library.opcheck(operator("linear_attention", form), (*leaves, None, *flags))
