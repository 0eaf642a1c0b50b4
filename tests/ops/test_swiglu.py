from functools import partial

import pytest
import torch
import torch.nn.functional as F
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gated_deltanet.ops.swiglu import BACKENDS, swiglu

reference = partial(swiglu, backend="reference")


def random_inputs(*shape: int, seed=0) -> dict[str, Tensor]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {"gate": 4 * normal(shape), "up": normal(shape)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0,), (1,), (15,), (16,), (17,), (0, 5), (5, 0), (2, 25, 3), (2, 8205), (700, 50)])
def test_backend_is_within_budget_of_the_reference(backend, shape):
    assert_within_budget(partial(swiglu, backend=backend), reference, random_inputs(*shape))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_within_budget(backend, dtype):
    skip_if_refused(backend, dtype)
    inputs = cast(random_inputs(3, 50), dtype)
    assert swiglu(**inputs, backend=backend).dtype == dtype
    assert_within_budget(partial(swiglu, backend=backend), reference, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend):
    inputs = random_inputs(3, 50)
    expected = outputs_and_grads(lambda gate, up: F.silu(gate) * up, inputs)
    for name, got in outputs_and_grads(partial(swiglu, backend=backend), inputs).items():
        assert relative_error(got, expected[name]) < 1e-6, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_gate_is_accurate_by_itself(backend):
    gate = torch.cat([torch.linspace(-86, 86, 40_001), torch.logspace(-40, 30, 2001)])
    y, oracle = swiglu(gate, torch.ones_like(gate), backend=backend), F.silu(gate.double())
    assert ((y - oracle).abs() <= 3 * 2**-24 * oracle.abs() + 2**-149).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_gates_saturate(backend):
    gate = torch.tensor([-3e38, -200.0, -100.0, 100.0, 200.0, 3e38], requires_grad=True)
    y = swiglu(gate, torch.ones(6), backend=backend)
    (slope,) = torch.autograd.grad(y.sum(), gate)
    assert torch.equal(y[3:], gate[3:])
    assert (y[:3].abs() < 1e-40).all()
    assert torch.allclose(slope, torch.tensor([0.0, 0, 0, 1, 1, 1]), atol=1e-40)
    assert swiglu(torch.tensor([float("nan")]), torch.ones(1), backend=backend).isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, ::2], lambda x: x.mT, lambda x: x[:, :1]])
def test_halves_of_one_projection_are_within_budget(backend, view):
    def of_halves(x, backend):
        return swiglu(*view(x).chunk(2, -1), backend=backend)

    forms = (partial(of_halves, backend=form) for form in (backend, "reference"))
    assert_within_budget(*forms, {"x": random_inputs(2, 26, 80)["gate"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    skip_if_refused(backend, torch.float64)
    leaves = [x.requires_grad_() for x in cast(random_inputs(3, 5), torch.float64).values()]
    assert torch.autograd.gradcheck(partial(swiglu, backend=backend), leaves)


@given(st.lists(st.integers(0, 7), max_size=3), st.integers(1, 40))
def test_any_shape_is_within_budget(rows, d):
    assert_within_budget(swiglu, reference, random_inputs(*rows, d))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"up": torch.zeros(5, 23)}, "up is .* with d = 24, as gate has"),
        ({"up": torch.zeros(24)}, r"up is \[24\], expected 2 axes"),
        ({"up": torch.zeros(5, 24).half()}, "up is torch.float16, expected torch.float32, as gate is"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference, cpp"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        swiglu(**random_inputs(5, 24) | change)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_passes_torch_opcheck(backend):
    torch.library.opcheck(operator("swiglu", backend), tuple(x.requires_grad_() for x in random_inputs(2, 5).values()))
