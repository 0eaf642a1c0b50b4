from functools import partial

import pytest
import torch
import torch.nn.functional as F
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused, takes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gated_deltanet.ops.gated_rms_norm import BACKENDS, blocked, gated_rms_norm

reference = partial(gated_rms_norm, backend="reference")
FORMS = [form for form in BACKENDS if form != "reference"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ON_CPU", 16 * 24)  # of 16 rows for d = 24


def random_inputs(*rows: int, d=24, seed=0) -> dict[str, Tensor]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {"x": normal(*rows, d), "gate": normal(*rows, d), "weight": normal(d)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [(), (0,), (1,), (15,), (16,), (17,), (2, 25, 3)])
def test_form_is_within_budget_of_the_reference(form, rows):
    inputs, norm = random_inputs(*rows), partial(gated_rms_norm, backend=form)
    assert_within_budget(norm, reference, inputs)
    assert_within_budget(norm, reference, inputs | {"gate": None})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
def test_dtypes_are_within_budget(form, dtype, weight_dtype):
    skip_if_refused(form, dtype)
    inputs, norm = cast(random_inputs(50), dtype), partial(gated_rms_norm, backend=form)
    if dtype != torch.float64:
        inputs["weight"] = inputs["weight"].to(weight_dtype or dtype)
    assert norm(**inputs).dtype == dtype
    assert_within_budget(norm, reference, inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("d", [1, 15, 16, 17, 63, 64, 200, 3000])
def test_any_width_is_within_budget(form, d):
    assert_within_budget(partial(gated_rms_norm, backend=form), reference, random_inputs(40, d=d))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
def test_small_and_large_inputs_are_within_budget(form, scale):
    inputs = random_inputs(50)
    inputs["x"] *= scale
    assert_within_budget(partial(gated_rms_norm, backend=form), reference, inputs)


@pytest.mark.usefixtures("restored_threads")
def test_native_results_do_not_depend_on_the_threads():
    if not takes("cpp", torch.float32):
        pytest.skip("the native library cannot be used")
    torch.set_num_threads(1)
    one = outputs_and_grads(partial(gated_rms_norm, backend="cpp"), random_inputs(5000))
    torch.set_num_threads(3)
    three = outputs_and_grads(partial(gated_rms_norm, backend="cpp"), random_inputs(5000))
    assert all(torch.equal(x, three[name]) for name, x in one.items())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_torch_rms_norm_agrees(backend, gated, eps):
    skip_if_refused(backend, torch.float64)

    def theirs(x, weight, gate=None):
        norm = torch.nn.RMSNorm(24, eps=eps, dtype=torch.float64)
        y = torch.func.functional_call(norm, {"weight": weight}, (x,))
        return y if gate is None else y * F.silu(gate)

    inputs = cast(random_inputs(2, 25), torch.float64) | ({} if gated else {"gate": None})
    expected = outputs_and_grads(theirs, inputs)
    for name, got in outputs_and_grads(partial(gated_rms_norm, eps=eps, backend=backend), inputs).items():
        assert relative_error(got, expected[name]) < 1e-12, name


def test_transformers_agrees():
    hf = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    inputs = random_inputs(2, 25)
    norm = hf.Qwen3NextRMSNormGated(24, eps=1e-5)
    theirs = torch.func.functional_call(norm, {"weight": inputs["weight"]}, (inputs["x"], inputs["gate"]))
    assert relative_error(gated_rms_norm(**inputs), theirs) < 1e-6


def test_transposed_inputs_agree_with_contiguous_ones():
    inputs = cast(random_inputs(5, 24), torch.float64)
    expected = outputs_and_grads(lambda x, gate, weight: gated_rms_norm(x.mT.contiguous(), gate, weight), inputs)
    for name, got in outputs_and_grads(lambda x, gate, weight: gated_rms_norm(x.mT, gate, weight), inputs).items():
        assert torch.equal(got, expected[name]), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("view", [lambda x: x.mT, lambda x: x[:, 2:14], lambda x: x[:, :1], lambda x: x[..., ::2]])
def test_views_are_within_budget(form, view):
    def of_views(x, gate, weight, backend):
        return gated_rms_norm(view(x), view(gate), weight[: view(x).shape[-1]], backend=backend)

    forms = (partial(of_views, backend=backend) for backend in (form, "reference"))
    assert_within_budget(*forms, random_inputs(7, 24))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gated", [True, False])
def test_gradcheck(backend, gated):
    skip_if_refused(backend, torch.float64)
    x, gate, weight = (x.requires_grad_() for x in cast(random_inputs(7, d=3), torch.float64).values())
    assert torch.autograd.gradcheck(partial(gated_rms_norm, backend=backend), (x, gate if gated else None, weight))


@given(st.lists(st.integers(0, 7), max_size=3), st.integers(1, 40), st.booleans())
def test_any_shape_agrees_with_the_reference(rows, d, gated):
    inputs = random_inputs(*rows, d=d) | ({} if gated else {"gate": None})
    assert_within_budget(gated_rms_norm, reference, inputs, neighbours=4)
    inputs = {n: None if x is None else x.double() for n, x in inputs.items()}
    expected = outputs_and_grads(reference, inputs)
    for name, got in outputs_and_grads(gated_rms_norm, inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": torch.zeros(5, 23)}, "gate is .* with d = 24, as x has"),
        ({"gate": torch.zeros(24)}, r"gate is \[24\], expected 2 axes"),
        ({"gate": torch.zeros(5, 24).half()}, "gate is torch.float16, expected torch.float32, as x is"),
        ({"weight": torch.zeros(23)}, r"weight is \[23\], expected \[d\] with d = 24, as x has"),
        ({"weight": torch.zeros(24, dtype=torch.int64)}, "weight is torch.int64, expected float32"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference, blocked"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        gated_rms_norm(**random_inputs(5) | change)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gated", [True, False])
def test_operator_passes_torch_opcheck(backend, gated):
    x, gate, weight = (x.requires_grad_() for x in random_inputs(2, 5, d=3).values())
    torch.library.opcheck(operator("gated_rms_norm", backend), (x, gate if gated else None, weight, 1e-5))
