import subprocess
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error, skip_if_refused
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import softplus

from gated_deltanet.ops.linear_attention import linear_attention
from gated_deltanet.ops.selective_scan import BACKENDS, selective_scan, selective_scan_step_
from gated_deltanet.ops.selective_scan.chunkwise import CHUNK
from gated_deltanet.ops.selective_scan.reference import recurrence

GATES = ("dt", "A")
TOKENS = ("x", "dt", "B", "C")
reference = partial(selective_scan, backend="reference")


def random_inputs(batch=2, L=50, D=5, n=3, N=None, seed=0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator)
    return {
        "x": normal(batch, L, D),
        "dt": softplus(normal(batch, L, D) - 2),
        "A": -4 * torch.rand(D, n, generator=generator),
        "B": normal(batch, L, n),
        "C": normal(batch, L, n),
        "state": normal(N or batch, D, n),
    }


@pytest.mark.parametrize("L", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1000])
@pytest.mark.parametrize("D", [5, 90])  # several chunks a segment, and one
def test_chunkwise_is_within_budget_of_the_recurrence(L, D):
    assert_within_budget(selective_scan, reference, random_inputs(L=L, D=D, batch=1 + (L < 1000)), GATES)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_within_budget(dtype):
    inputs = cast(random_inputs(L=100), dtype)
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    inputs |= cast({n: inputs[n] for n in ("dt", "A", "state")}, gate_dtype)
    y, h = selective_scan(**inputs)
    assert y.dtype == dtype
    assert h.dtype == gate_dtype
    assert_within_budget(selective_scan, reference, inputs, GATES)


@pytest.mark.parametrize("dt", [0.0, 100.0, 1000.0])
@pytest.mark.parametrize("where", [slice(20, 21), slice(90, 91), slice(None)])
def test_no_step_and_strong_decay_are_within_budget(dt, where):
    inputs = random_inputs(L=100)
    inputs["dt"][:, where, 1:] = dt
    assert_within_budget(selective_scan, reference, inputs, GATES)


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_equal_separate_ones(form, dtype):
    skip_if_refused(form, torch.float64)
    ends = [0, 0, 5, 5, 70, 199, 200, 200]  # empty ones first, inside and last
    inputs = cast(random_inputs(batch=1, L=200, N=7), torch.float64)
    packed = outputs_and_grads(
        partial(selective_scan, backend=form, cu_seqlens=torch.tensor(ends, dtype=dtype)), inputs
    )

    def separately(x, dt, A, B, C, state):
        parts = [
            recurrence(x[:, a:b], dt[:, a:b], A, B[:, a:b], C[:, a:b], state[i : i + 1])
            for i, (a, b) in enumerate(pairwise(ends))
        ]
        return torch.cat([y for y, _ in parts], 1), torch.cat([h for _, h in parts])

    for name, expected in outputs_and_grads(separately, inputs).items():
        assert relative_error(packed[name], expected) < 1e-12, name


@pytest.mark.parametrize("form", BACKENDS)
@pytest.mark.parametrize("cut", [0, 1, 37, 64, 99, 100])
def test_cutting_a_sequence_and_carrying_the_state_changes_nothing(form, cut):
    skip_if_refused(form, torch.float64)
    inputs = cast(random_inputs(L=100), torch.float64)
    y, h = selective_scan(**inputs, backend=form)
    early, late = ({n: inputs[n][:, part] for n in TOKENS} for part in (slice(cut), slice(cut, None)))
    y1, h1 = selective_scan(**inputs | early, backend=form)
    y2, h2 = selective_scan(**inputs | late | {"state": h1}, backend=form)
    assert relative_error(torch.cat([y1, y2], 1), y) < 1e-12
    assert relative_error(h2, h) < 1e-12


@pytest.mark.parametrize("form", BACKENDS)
def test_gradcheck(form):
    skip_if_refused(form, torch.float64)
    leaves = [x.requires_grad_() for x in cast(random_inputs(L=7, D=3, n=2), torch.float64).values()]
    assert torch.autograd.gradcheck(partial(selective_scan, backend=form), leaves)


@pytest.mark.parametrize("form", BACKENDS)
def test_transformers_mamba_agrees(form):
    hf = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    x, dt, A, B, C, _ = random_inputs(L=150).values()
    expected, last = hf.mamba_selective_scan(x.mT, dt.mT, A, B.mT, C.mT, return_last_state=True)
    y, h = selective_scan(x, dt, A, B, C, backend=form)
    assert relative_error(y, expected.mT) < 1e-6
    assert relative_error(h, last) < 1e-6


@pytest.mark.parametrize("form", BACKENDS)
def test_it_is_linear_attention_with_a_head_per_channel(form):
    skip_if_refused(form, torch.float64)
    x, dt, A, B, C, state = cast(random_inputs(L=100), torch.float64).values()
    q, k, v, log_alpha = C[:, :, None], B[:, :, None], (dt * x)[..., None], dt[..., None] * A
    o, S = linear_attention(q, k, v, log_alpha, state[..., None])
    y, h = selective_scan(x, dt, A, B, C, state, backend=form)
    assert relative_error(y, o.squeeze(-1)) < 1e-13
    assert relative_error(h, S.squeeze(-1)) < 1e-13


def test_step_in_place_is_the_recurrence():
    inputs = random_inputs(L=9)
    y, h = reference(**inputs)
    steps = [selective_scan_step_(**inputs | {n: inputs[n][:, t] for n in TOKENS}) for t in range(9)]
    assert relative_error(torch.stack(steps, 1), y) < 1e-6
    assert relative_error(inputs["state"], h) < 1e-6


@pytest.mark.parametrize("name", ["x", "A"])
def test_step_refuses_gradients(name):
    inputs = {n: x[:, 0] if n in TOKENS else x for n, x in random_inputs(L=1).items()}
    with pytest.raises(ValueError, match="no_grad"):
        selective_scan_step_(**inputs | {name: inputs[name].requires_grad_()})


@pytest.mark.parametrize("dt", [100.0, 1e-3])
def test_a_hundred_thousand_tokens_stay_finite(dt):
    inputs = random_inputs(batch=1, L=100_000, D=2, n=2)
    inputs["dt"].fill_(dt)
    for name, x in outputs_and_grads(selective_scan, inputs).items():
        assert x.isfinite().all(), name


def test_chunkwise_memory_holds_few_states():
    """All states of 2,048 tokens are 256 MiB, and several such tensors; forward and backward must do with 100 MiB."""
    code = """if True:
        import resource, torch
        from gated_deltanet.ops.selective_scan import selective_scan
        def run(L, D=256, n=128):
            x, B, C = (torch.randn(1, L, d, requires_grad=True) for d in (D, n, n))
            y, h = selective_scan(x, torch.rand(1, L, D), -torch.rand(D, n), B, C)
            (y.sum() + h.sum()).backward()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = run(64)
        print(run(2048) - before)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 100 * 2**20


@given(
    st.integers(1, 3), st.integers(0, 150), st.integers(1, 70), st.integers(1, 9),
    st.integers(0, 9), st.sampled_from([0.0, 0.1, 20.0, 1000.0]),
)  # fmt: skip
def test_any_shape_and_value_agrees_with_the_recurrence(batch, L, D, n, seed, dt):
    inputs = cast(random_inputs(batch, L, D, n, seed=seed), torch.float64)
    inputs["dt"][:, 2::5] = dt
    expected = outputs_and_grads(reference, inputs)
    for name, got in outputs_and_grads(selective_scan, inputs).items():
        assert relative_error(got, expected[name]) < 1e-12, name


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_any_packing_agrees_with_the_recurrence(lengths):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    inputs = cast(random_inputs(batch=1, L=sum(lengths), N=len(lengths), D=3, n=2), torch.float64)
    expected = outputs_and_grads(partial(reference, cu_seqlens=cu_seqlens), inputs)
    for name, got in outputs_and_grads(partial(selective_scan, cu_seqlens=cu_seqlens), inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dt": torch.zeros(2, 50, 4)}, r"dt is \[2, 50, 4\], expected \[batch, L, D\] with D = 5, as x has"),
        ({"A": torch.zeros(5)}, r"A is \[5\], expected 2 axes \[D, n\]"),
        ({"B": torch.zeros(2, 50, 4)}, "B is .* with n = 3, as A has"),
        ({"B": None}, "B is a NoneType, expected a tensor"),
        ({"C": torch.zeros(2, 50, 3, dtype=torch.bfloat16)}, "C is torch.bfloat16, expected torch.float32, as x is"),
        ({"dt": torch.full((2, 50, 5), -0.5)}, "dt holds -0.5, expected values ≥ 0"),
        ({"dt": torch.full((2, 50, 5), torch.nan)}, "dt holds NaN"),
        ({"A": torch.full((5, 3), torch.nan)}, "A holds NaN"),
        ({"state": torch.zeros(2, 3, 5)}, r"state is \[2, 3, 5\], expected \[N, D, n\] = \[2, 5, 3\]"),
        ({"cu_seqlens": torch.tensor([0, 50])}, "the batch has 2 rows"),
        ({"backend": "parallel"}, "backend is 'parallel', expected one of auto, reference"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**random_inputs() | change)


@pytest.mark.parametrize("form", BACKENDS)
def test_operator_passes_torch_opcheck(form):
    leaves = tuple(x.requires_grad_() for x in random_inputs(L=5, D=3, n=2).values())
    flags = {"cpp": (True,)}.get(form, ())
    torch.library.opcheck(operator("selective_scan", form), (*leaves, None, *flags))
