"""SwiGLU, the gated RMS norm and the short convolution in Triton, held to the error budget of every form."""

from functools import partial

import pytest
import test_gated_rms_norm
import test_short_conv
import test_swiglu
import torch
from budget import assert_within_budget, cast, operator, outputs_and_grads
from test_gated_rms_norm import small_blocks  # noqa: F401 of blocked forms, which are the reference here

from gated_deltanet.ops import gated_rms_norm, gpu, short_conv, short_conv_step_, swiglu

DEVICE = "cpu" if gpu.interpreted() else "cuda"
HALF = [torch.bfloat16, torch.float16]


def in_triton(op, **inputs):
    """On the GPU if there is one; the results back on the CPU."""
    inputs = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    results = op(**inputs, backend="triton")
    return results.cpu() if isinstance(results, torch.Tensor) else tuple(x.cpu() for x in results)


def within_budget(op, inputs, **options):
    assert_within_budget(partial(in_triton, op, **options), partial(op, backend="reference", **options), inputs)


@pytest.mark.parametrize("shape", [(0,), (1,), (5, 0), (2, 3, 7), (2, 1025)])
def test_swiglu_is_within_budget(shape):
    within_budget(swiglu, test_swiglu.random_inputs(*shape))


@pytest.mark.parametrize("dtype", HALF)
def test_swiglu_in_half_precisions_is_within_budget(dtype):
    within_budget(swiglu, cast(test_swiglu.random_inputs(3, 50), dtype))


def test_extreme_gates_saturate():
    gate = torch.tensor([-3e38, -200.0, -100.0, 100.0, 200.0, 3e38], device=DEVICE, requires_grad=True)
    y = swiglu(gate, torch.ones_like(gate), backend="triton")
    (slope,) = torch.autograd.grad(y.sum(), gate)
    assert torch.equal(y[3:], gate[3:])
    assert (y[:3].abs() < 1e-40).all()
    assert torch.allclose(slope.cpu(), torch.tensor([0.0, 0, 0, 1, 1, 1]), atol=1e-40)


@pytest.mark.parametrize(("rows", "d"), [((), 24), ((0,), 24), ((2, 35), 1), ((129,), 17), ((3, 2, 2), 200)])
def test_norm_is_within_budget(rows, d):
    inputs = test_gated_rms_norm.random_inputs(*rows, d=d)
    within_budget(gated_rms_norm, inputs)
    within_budget(gated_rms_norm, inputs | {"gate": None})


@pytest.mark.slow
@pytest.mark.parametrize("d", [2400, 8192])
def test_wide_norms_are_within_budget(d):
    within_budget(gated_rms_norm, test_gated_rms_norm.random_inputs(3, d=d))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
def test_norm_in_half_precisions_is_within_budget(dtype, weight_dtype):
    inputs = cast(test_gated_rms_norm.random_inputs(50), dtype)
    within_budget(gated_rms_norm, inputs | {"weight": inputs["weight"].to(weight_dtype or dtype)})


@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize(("K", "L"), [(1, 3), (4, 0), (4, 2), (3, 33)])
def test_conv_is_within_budget(activation, K, L):
    inputs = test_short_conv.random_inputs(L=L, K=K, D=5)
    within_budget(short_conv, inputs if activation else inputs | {"bias": None}, activation=activation)


@pytest.mark.slow
@pytest.mark.parametrize("L", [1, 31, 70])
@pytest.mark.parametrize("K", [2, 4, 9])
def test_any_conv_is_within_budget(K, L):
    within_budget(short_conv, test_short_conv.random_inputs(L=L, K=K, D=65))


@pytest.mark.parametrize("dtype", HALF)
def test_conv_in_half_precisions_is_within_budget(dtype):
    within_budget(short_conv, cast(test_short_conv.random_inputs(B=1, L=20, D=65, K=3), dtype))


def test_conv_of_packed_sequences_is_within_budget():
    ends = torch.tensor([0, 0, 2, 2, 35, 36, 36], dtype=torch.int32)  # empty ones first, inside and last
    within_budget(short_conv, test_short_conv.random_inputs(B=1, L=36, K=3, N=6), cu_seqlens=ends)


def test_strides_do_not_matter():
    """Slices of a wider projection are read in place; other strides are copied."""
    for op, inputs in (
        (swiglu, test_swiglu.random_inputs(2, 3, 5)),
        (gated_rms_norm, test_gated_rms_norm.random_inputs(2, 3)),
        (short_conv, test_short_conv.random_inputs(L=3, K=2)),
    ):
        expected = outputs_and_grads(partial(in_triton, op), inputs)
        wider = {n: torch.cat([x, x], -1)[..., : x.shape[-1]] for n, x in inputs.items()}
        turned = {n: x.transpose(0, -1).contiguous().transpose(0, -1) for n, x in inputs.items()}
        for strided in (wider, turned):
            for name, x in outputs_and_grads(partial(in_triton, op), strided).items():
                assert torch.equal(x, expected[name]), name


@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("activation", ["silu", None])
def test_steps_of_the_conv_have_the_bits_of_the_sequence(K, activation, monkeypatch):
    monkeypatch.setattr(gpu, "preferred", lambda x: gpu.refusal(x, None) is None)
    inputs = test_short_conv.random_inputs(L=6, K=K, D=67)
    y, last_state = in_triton(short_conv, **inputs, activation=activation)
    x, weight, bias, state = (z.clone().to(DEVICE) for z in inputs.values())
    steps = []
    for t in range(6):
        version = state._version
        steps.append(short_conv_step_(x[:, t], weight, bias, state, activation=activation))
        assert state._version > version
    assert torch.equal(torch.stack(steps, 1).cpu(), y)
    assert torch.equal(state.cpu(), last_state)


def test_operators_pass_torch_opcheck():
    swiglu_inputs = [x.to(DEVICE).requires_grad_() for x in test_swiglu.random_inputs(2, 3).values()]
    torch.library.opcheck(operator("swiglu", "triton"), tuple(swiglu_inputs))
    x, gate, weight = (x.to(DEVICE).requires_grad_() for x in test_gated_rms_norm.random_inputs(2, d=3).values())
    torch.library.opcheck(operator("gated_rms_norm", "triton"), (x, gate, weight, 1e-5))
    x, weight, bias, state = (
        x.to(DEVICE).requires_grad_() for x in test_short_conv.random_inputs(L=2, D=3, K=2).values()
    )
    torch.library.opcheck(operator("short_conv", "triton"), (x, weight, bias, state, "silu", None))


def test_what_they_do_not_take_is_said():
    with pytest.raises(ValueError, match="'triton' takes K up to 16, weight has 17"):
        in_triton(short_conv, **test_short_conv.random_inputs(K=17))
    with pytest.raises(ValueError, match="'triton' takes d up to 8192, x has 8193"):
        in_triton(gated_rms_norm, **test_gated_rms_norm.random_inputs(1, d=8193))
