from functools import partial

import pytest
import torch
import torch.nn.functional as F
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gated_deltanet.ops.linear_cross_entropy import BACKENDS, blocked, cpp, linear_cross_entropy

reference = partial(linear_cross_entropy, backend="reference")
reference_losses = partial(reference, reduction="none")
LOGITS = blocked.LOGITS
FORMS = [name for name in BACKENDS if name != "reference"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "LOGITS", 16 * 11)  # 16 tokens for V = 11


def random_inputs(*tokens: int, V=11, d=6, ignored=0.3, seed=0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, V, tokens, generator=generator)
    targets[torch.rand(tokens, generator=generator) < ignored] = -100
    normal = partial(torch.randn, generator=generator)
    return {"x": normal(*tokens, d), "weight": normal(V, d), "targets": targets}


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("tokens", [(1,), (15,), (16,), (17,), (2, 50)])
def test_form_is_within_budget_of_the_reference(backend, reduction, tokens):
    skip_if_refused(backend, torch.float32)
    inputs = random_inputs(*tokens, ignored=0.3 if tokens == (2, 50) else 0)
    options = {"reduction": reduction}
    form = partial(linear_cross_entropy, **options, backend=backend)
    assert_within_budget(form, partial(reference, **options), inputs)


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_dtypes_are_within_budget(backend, dtype, reduction):
    skip_if_refused(backend, dtype)
    inputs = cast(random_inputs(100, V=300), dtype)
    options = {"reduction": reduction, "backend": backend}
    loss = linear_cross_entropy(**inputs, **options)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_within_budget(partial(linear_cross_entropy, **options), partial(reference, reduction=reduction), inputs)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("V", [1, 2, 15, 16, 17, 63, 64, 65, 129, 1000])  # around vectors, and several side by side
def test_any_number_of_logits_is_within_budget_natively(reduction, V):
    skip_if_refused("cpp", torch.float32)
    options = {"reduction": reduction}
    form = partial(linear_cross_entropy, **options, backend="cpp")
    assert_within_budget(form, partial(reference, **options), random_inputs(23, V=V))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 0, 3])
def test_torch_cross_entropy_agrees(backend, reduction, ignore_index):
    skip_if_refused(backend, torch.float64)
    inputs = cast(random_inputs(100, ignored=0), torch.float64)
    options = {"reduction": reduction, "ignore_index": ignore_index}
    expected = outputs_and_grads(lambda x, weight, targets: F.cross_entropy(x @ weight.mT, targets, **options), inputs)
    for name, got in outputs_and_grads(partial(linear_cross_entropy, **options, backend=backend), inputs).items():
        assert relative_error(got, expected[name]) < 1e-12, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens", [(), (0,), (5,), (2, 0)])
def test_no_token_that_counts_gives_zero_and_zero_gradients(backend, tokens):
    skip_if_refused(backend, torch.float32)
    for reduction in ("mean", "sum", "none"):
        form = partial(linear_cross_entropy, reduction=reduction, backend=backend)
        for name, got in outputs_and_grads(form, random_inputs(*tokens, ignored=1)).items():
            assert not got.any(), name


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_large_logits_stay_finite(backend, scale):
    skip_if_refused(backend, torch.float32)
    inputs = random_inputs(50)
    inputs["x"] *= scale
    assert_within_budget(partial(linear_cross_entropy, backend=backend), reference, inputs)


@pytest.mark.parametrize("backend", FORMS)
def test_logits_that_are_all_far_below_zero_lose_nothing(backend):
    skip_if_refused(backend, torch.float32)
    inputs = random_inputs(20, V=19, d=2)
    inputs["x"][:, 1], inputs["weight"][:, 1] = 1, -(2.0**13)
    assert_within_budget(partial(linear_cross_entropy, backend=backend, reduction="none"), reference_losses, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nan_stays_in_its_token_natively(dtype, reduction):
    skip_if_refused("cpp", dtype)
    inputs = cast(random_inputs(20, V=37, ignored=0), dtype)
    inputs["x"][3, 2] = torch.nan
    got = outputs_and_grads(partial(linear_cross_entropy, backend="cpp", reduction=reduction), inputs)
    losses, dx = got["output 0"], got["dx"]
    assert losses.isnan().sum() == 1
    assert dx[3].isnan().all()
    assert dx.isnan().sum() == dx.shape[1]
    assert got["dweight"].isnan().all()


def test_a_logit_of_minus_infinity_counts_nothing_natively():
    skip_if_refused("cpp", torch.float32)
    logits, targets = torch.randn(5, 37, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    logits[:, 9] = -torch.inf
    kept = logits[:, torch.arange(37) != 9]
    expected = F.cross_entropy(kept, targets, reduction="none"), kept.softmax(1) - F.one_hot(targets, 36)
    losses = cpp.of_rows(logits, targets, torch.ones(5))
    assert relative_error(losses, expected[0]) < 1e-6
    assert relative_error(logits[:, torch.arange(37) != 9], expected[1]) < 1e-6
    assert not logits[:, 9].any()


class Largest(TorchDispatchMode):
    """The number of values of the largest tensor made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for x in result if isinstance(result, (tuple, list)) else [result]:
            self.numel = max(self.numel, x.numel() if isinstance(x, Tensor) else 0)
        return result


def test_all_logits_never_exist(monkeypatch):
    monkeypatch.setattr(blocked, "LOGITS", LOGITS)
    T, V = 5000, 4000
    x, weight, targets = random_inputs(T, V=V, d=4, ignored=0).values()
    with Largest() as largest:
        blocked.backward((torch.ones(T),), x, weight, targets, -100)
        blocked.forward(x, weight, targets, -100)
    assert LOGITS - V < largest.numel <= LOGITS < T * V


def test_all_logits_never_exist_natively(monkeypatch):
    skip_if_refused("cpp", torch.float32)
    monkeypatch.setattr(blocked, "LOGITS", LOGITS)
    T, V = 3000, 700
    inputs = (*random_inputs(T, V=V, d=4, ignored=0).values(), -100)
    with Largest() as largest:
        cpp.backward((torch.ones(T),), *inputs)
        cpp.total_forward(*inputs, True)
    assert largest.numel == cpp.block_size(V) * V < T * V


def test_memory_of_the_operator_is_less_than_that_of_all_logits(monkeypatch):
    monkeypatch.setattr(blocked, "LOGITS", 2**16)
    inputs = random_inputs(1000, V=1000, d=4, ignored=0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        outputs_and_grads(linear_cross_entropy, inputs)
    assert max(event.cpu_memory_usage for event in profile.events()) < 4 * 1000 * 1000


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    skip_if_refused(backend, torch.float64)
    x, weight, targets = cast(random_inputs(20, V=5, d=3), torch.float64).values()
    leaves = (x.requires_grad_(), weight.requires_grad_(), targets)
    assert torch.autograd.gradcheck(partial(linear_cross_entropy, reduction="none", backend=backend), leaves)


@given(
    st.lists(st.integers(0, 9), max_size=2), st.integers(1, 200), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0])
)
def test_any_shape_agrees_with_the_reference(tokens, V, d, ignored):
    inputs = cast(random_inputs(*tokens, V=V, d=d, ignored=ignored), torch.float64)
    for reduction in ("mean", "none"):
        expected = outputs_and_grads(partial(reference, reduction=reduction), inputs)
        for name, got in outputs_and_grads(partial(linear_cross_entropy, reduction=reduction), inputs).items():
            assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(11, 5)}, r"weight is \[11, 5\], expected \[V, d\] with d = 6, as x has"),
        ({"weight": torch.zeros(11, 6).half()}, "weight is torch.float16, expected torch.float32, as x is"),
        ({"targets": torch.zeros(4, dtype=torch.int64)}, r"targets is \[4\], expected .* = 5, as x has"),
        ({"targets": torch.zeros(5, dtype=torch.int32)}, "targets is torch.int32, expected torch.int64"),
        ({"targets": torch.full((5,), 11)}, "targets holds 11, expected 0 to 10, or -100 to ignore"),
        ({"targets": torch.full((5,), -1)}, "targets holds -1, expected 0 to 10"),
        ({"reduction": "max"}, "reduction is 'max', expected 'mean', 'sum' or 'none'"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference, blocked, cpp"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**random_inputs(5) | change)


@pytest.mark.parametrize("backend", [*BACKENDS, "total-cpp"])
def test_operator_passes_torch_opcheck(backend):
    skip_if_refused("cpp" if backend == "total-cpp" else backend, torch.float32)
    x, weight, targets = random_inputs(20, V=5, d=3).values()
    inputs = (x.requires_grad_(), weight.requires_grad_(), targets, -100)
    flags = (True,) if backend == "total-cpp" else ()
    torch.library.opcheck(operator("linear_cross_entropy", backend), (*inputs, *flags))


def test_float16_neither_overflows_nor_underflows():
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    inputs = {"x": normal(4096, 16).half(), "weight": normal(500, 16).half()}
    inputs["targets"] = torch.arange(4096) % 500
    assert_within_budget(linear_cross_entropy, reference, inputs)  # the mean's gradients are below half's least number
    large = linear_cross_entropy(inputs["x"] * 100, inputs["weight"] * 1000, inputs["targets"])
    assert large.isfinite()
