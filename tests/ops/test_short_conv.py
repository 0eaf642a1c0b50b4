from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused, takes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gated_deltanet.ops.short_conv import BACKENDS, blocked, short_conv, short_conv_step_

reference = partial(short_conv, backend="reference")
FORMS = [form for form in BACKENDS if form != "reference"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ON_CPU", 2 * 6 * 16)  # of 16 tokens for B = 2, D = 6


def random_inputs(B=2, L=50, D=6, K=4, N=None, seed=0) -> dict[str, Tensor]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {"x": normal(B, L, D), "weight": normal(D, K), "bias": normal(D), "state": normal(N or B, K - 1, D)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("K", [1, 2, 4, 9])
@pytest.mark.parametrize("L", [0, 1, 2, 3, 15, 16, 17, 100])
def test_form_is_within_budget_of_the_reference(form, activation, K, L):
    inputs, conv = random_inputs(L=L, K=K), partial(short_conv, backend=form)
    assert_within_budget(partial(conv, activation=activation), partial(reference, activation=activation), inputs)
    assert_within_budget(conv, reference, inputs | {"bias": None})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_within_budget(form, dtype):
    skip_if_refused(form, dtype)
    inputs, conv = cast(random_inputs(), dtype), partial(short_conv, backend=form)
    assert {x.dtype for x in conv(**inputs)} == {dtype}
    assert_within_budget(conv, reference, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_tokens_and_channels_are_within_budget(dtype):
    if not takes("cpp", dtype):
        pytest.skip("the native library cannot be used")
    ends = torch.tensor([0, 100, 128, 131, 300])  # a task is 128 tokens of 2048 channels
    inputs = cast(random_inputs(B=1, L=300, D=2048 + 21, N=4), dtype)
    conv, plain = (partial(short_conv, backend=form, cu_seqlens=ends) for form in ("cpp", "reference"))
    assert_within_budget(conv, plain, inputs)


@pytest.mark.usefixtures("restored_threads")
def test_native_results_do_not_depend_on_the_threads():
    if not takes("cpp", torch.float32):
        pytest.skip("the native library cannot be used")
    torch.set_num_threads(1)
    one = outputs_and_grads(partial(short_conv, backend="cpp"), random_inputs(L=300, D=40))
    torch.set_num_threads(3)
    three = outputs_and_grads(partial(short_conv, backend="cpp"), random_inputs(L=300, D=40))
    assert all(torch.equal(x, three[name]) for name, x in one.items())


@pytest.mark.parametrize("form", FORMS)
def test_slices_of_a_wider_projection_agree_with_copies(form):
    inputs = random_inputs(D=20)
    x = inputs.pop("x")

    def of_slices(x, weight, bias, state):
        return short_conv(x[..., 3:9], weight[3:9], bias[3:9], state[..., 3:9], backend=form)

    def of_copies(x, weight, bias, state):
        copies = [z.contiguous() for z in (x[..., 3:9], weight[3:9], bias[3:9], state[..., 3:9])]
        return short_conv(*copies, backend=form)

    expected = outputs_and_grads(of_copies, {"x": x, **inputs})
    for name, got in outputs_and_grads(of_slices, {"x": x, **inputs}).items():
        assert torch.equal(got, expected[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_equal_separate_ones(backend, K, dtype):
    skip_if_refused(backend, torch.float64)
    ends = [0, 0, 1, 3, 3, 33, 50, 50]  # empty ones first, inside and last, and some shorter than K − 1
    inputs = cast(random_inputs(B=1, N=7, K=K), torch.float64)
    packed = partial(short_conv, backend=backend, cu_seqlens=torch.tensor(ends, dtype=dtype))

    def separately(x, weight, bias, state):
        parts = [reference(x[:, a:b], weight, bias, state[i : i + 1]) for i, (a, b) in enumerate(pairwise(ends))]
        return torch.cat([y for y, _ in parts], 1), torch.cat([s for _, s in parts])

    expected = outputs_and_grads(separately, inputs)
    for name, got in outputs_and_grads(packed, inputs).items():
        assert relative_error(got, expected[name]) < 1e-12, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [0, 1, 2, 16, 49, 50])
def test_cutting_a_sequence_and_carrying_the_state_changes_nothing(backend, cut):
    skip_if_refused(backend, torch.float64)

    def cut_in_two(x, weight, bias, state):
        y1, state = short_conv(x[:, :cut], weight, bias, state, backend=backend)
        y2, state = short_conv(x[:, cut:], weight, bias, state, backend=backend)
        return torch.cat([y1, y2], 1), state

    inputs = cast(random_inputs(), torch.float64)
    whole = outputs_and_grads(partial(short_conv, backend=backend), inputs)
    for name, got in outputs_and_grads(cut_in_two, inputs).items():
        assert relative_error(got, whole[name]) < 1e-12, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ["silu", None])
def test_torch_conv1d_agrees(backend, activation):
    skip_if_refused(backend, torch.float64)

    def theirs(x, weight, bias, state):
        y = F.conv1d(torch.cat([state, x], 1).mT, weight[:, None], bias, groups=len(weight)).mT
        return F.silu(y) if activation else y

    inputs = cast(random_inputs(), torch.float64)
    expected = outputs_and_grads(theirs, inputs)
    ours = outputs_and_grads(lambda **x: short_conv(**x, activation=activation, backend=backend)[0], inputs)
    for name, got in ours.items():
        assert relative_error(got, expected[name]) < 1e-12, name


def test_transformers_agrees():
    hf = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    x, weight, bias, state = random_inputs().values()
    y, last = short_conv(x, weight, bias, state)
    theirs = state.mT.contiguous()
    assert relative_error(y, hf.causal_conv1d_update(x.mT, theirs, weight, bias, activation="silu").mT) < 1e-6
    assert torch.equal(last, theirs.mT)
    y, _ = short_conv(x, weight, bias)
    assert relative_error(y, hf.causal_conv1d_fn(x.mT, weight, bias, activation="silu").mT) < 1e-6


@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_in_place_is_the_full_form(K, dtype):
    inputs = cast(random_inputs(L=9, K=K), dtype)
    for change in ({}, {"bias": None}):
        inputs |= change
        y, last = short_conv(**inputs)
        state = inputs["state"].clone()
        steps = [short_conv_step_(inputs["x"][:, t], inputs["weight"], inputs["bias"], state) for t in range(9)]
        assert relative_error(torch.stack(steps, 1), y) < 2 * torch.finfo(dtype).eps
        assert torch.equal(state, last)


def test_step_refuses_gradients():
    x, weight, bias, state = random_inputs().values()
    with pytest.raises(ValueError, match="no_grad"):
        short_conv_step_(x[:, 0], weight.requires_grad_(), bias, state)


def test_no_state_is_zeros():
    inputs = random_inputs()
    zeros = torch.zeros_like(inputs.pop("state"))
    for with_none, with_zeros in zip(short_conv(**inputs), short_conv(**inputs, state=zeros), strict=True):
        assert torch.equal(with_none, with_zeros)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    skip_if_refused(backend, torch.float64)
    leaves = [x.requires_grad_() for x in cast(random_inputs(L=5, D=3, K=3), torch.float64).values()]
    assert torch.autograd.gradcheck(partial(short_conv, backend=backend), leaves)


@given(st.integers(1, 3), st.integers(0, 40), st.integers(1, 9), st.integers(1, 6), st.sampled_from(["silu", None]))
def test_any_shape_agrees_with_the_reference(B, L, D, K, activation):
    inputs = cast(random_inputs(B, L, D, K), torch.float64)
    expected = outputs_and_grads(partial(reference, activation=activation), inputs)
    for name, got in outputs_and_grads(partial(short_conv, activation=activation), inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 5))
def test_any_packing_agrees_with_the_reference(lengths, K):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    packed, plain = (partial(f, cu_seqlens=cu_seqlens) for f in (short_conv, reference))
    inputs = random_inputs(B=1, L=sum(lengths), N=len(lengths), D=3, K=K)
    assert_within_budget(packed, plain, inputs, neighbours=4)
    inputs = cast(inputs, torch.float64)
    expected = outputs_and_grads(plain, inputs)
    for name, got in outputs_and_grads(packed, inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(5, 4)}, r"weight is \[5, 4\], expected \[D, K\] with D = 6, as x has"),
        ({"weight": torch.zeros(6, 0)}, "expected .* with K ≥ 1"),
        ({"bias": torch.zeros(6, 1)}, r"bias is \[6, 1\], expected 1 axes \[D\]"),
        ({"bias": torch.zeros(6).double()}, "bias is torch.float64, expected torch.float32, as x is"),
        ({"state": torch.zeros(2, 4, 6)}, r"state is \[2, 4, 6\], expected .* = \[2, 3, 6\]"),
        ({"state": torch.zeros(2, 3, 6).half()}, "state is torch.float16, expected torch.float32"),
        ({"activation": "relu"}, "activation is 'relu', expected 'silu' or None"),
        ({"cu_seqlens": torch.tensor([0, 50])}, "the batch has 2 rows"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference, blocked"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        short_conv(**random_inputs() | change)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
def test_operator_passes_torch_opcheck(backend, bias):
    x, weight, b, state = (x.requires_grad_() for x in random_inputs(L=5, D=3).values())
    torch.library.opcheck(operator("short_conv", backend), (x, weight, b if bias else None, state, "silu", None))
