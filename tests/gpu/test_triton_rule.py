"""The gated delta rule in Triton, held to the error budget of every form. Small: the interpreter is slow."""

from functools import partial

import pytest
import torch
from budget import assert_within_budget, cast, operator, outputs_and_grads
from test_gated_delta_rule import GATES, random_inputs, reference
from torch.nn.functional import normalize

from gated_deltanet.bench.accuracy import round_operands
from gated_deltanet.ops import gated_delta_mix, gated_delta_rule, gpu

DEVICE = "cpu" if gpu.interpreted() else "cuda"
one_head = partial(random_inputs, B=1, H=1, H_v=1, d_k=20, d_v=12)


def in_triton(op=gated_delta_rule, **inputs):
    """On the GPU if there is one; the results back on the CPU."""
    inputs = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    return tuple(x.cpu() for x in op(**inputs, backend="triton"))


def within_budget(inputs, **options):
    assert_within_budget(partial(in_triton, **options), partial(reference, **options), inputs, GATES)


@pytest.mark.parametrize("L", [1, 31, 32, 33])
def test_lengths_around_a_chunk_are_within_budget(L):
    within_budget(one_head(L=L))


@pytest.mark.parametrize(("d_k", "d_v"), [(16, 24), (33, 16), (64, 65)])  # chunks of 16 and 32
def test_other_widths_are_within_budget(d_k, d_v):
    within_budget(one_head(L=70, d_k=d_k, d_v=d_v))


@pytest.mark.slow
@pytest.mark.parametrize(("d_k", "d_v"), [(1, 1), (3, 2), (100, 130), (128, 128), (200, 400), (256, 256)])
def test_any_width_is_within_budget(d_k, d_v):
    within_budget(one_head(L=70, d_k=d_k, d_v=d_v))


def test_value_heads_that_share_keys_are_within_budget():
    within_budget(random_inputs(B=2, L=20, H=2, H_v=4, d_k=17, d_v=9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_within_budget(dtype):
    inputs = round_operands(one_head(L=70, d_k=64), dtype)
    assert in_triton(**inputs)[0].dtype == dtype
    within_budget(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [1, 4, 10])
def test_correlated_keys_in_half_precisions_are_within_budget(dtype, share):
    inputs = one_head(L=130, d_k=64, beta_max=2.0)
    inputs["k"] = normalize(inputs["k"] + share * inputs["k"][:, :1], dim=-1)
    within_budget(round_operands(inputs, dtype))


@pytest.mark.parametrize("strong", [-100.0, -torch.inf])
def test_strong_decay_is_within_budget(strong):
    inputs = random_inputs(B=1, L=70, H=1, H_v=2, d_k=33)
    inputs["log_alpha"][:, 20] = strong
    inputs["log_alpha"][:, :, 1] = strong
    within_budget(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_beta_at_its_bounds_is_within_budget(beta):
    inputs = one_head(L=70)
    inputs["beta"][:, ::2] = beta
    within_budget(inputs)


def test_correlated_keys_are_within_budget():
    inputs = one_head(L=130, d_k=64, beta_max=2.0)
    inputs["k"] = normalize(inputs["k"] + 4 * inputs["k"][:, :1], dim=-1)
    within_budget(inputs)


def test_no_log_alpha_is_the_delta_rule():
    within_budget(one_head(L=50) | {"log_alpha": None})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_are_within_budget(dtype):
    ends = [0, 0, 5, 5, 39, 68, 69, 69]  # empty ones first, inside and last
    within_budget(one_head(L=69, N=7), cu_seqlens=torch.tensor(ends, dtype=dtype))


def test_strides_do_not_matter():
    inputs = one_head(L=20, H_v=2, N=1)
    strided = {n: x.transpose(0, -1).contiguous().transpose(0, -1) for n, x in inputs.items()}
    for x, y in zip(in_triton(**inputs), in_triton(**strided), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("sizes", [{"L": 0}, {"B": 0}, {"d_v": 0}])
def test_empty_results_and_zero_gradients(sizes):
    inputs = one_head(**{"L": 3} | sizes)
    expected = outputs_and_grads(reference, inputs)
    for name, x in outputs_and_grads(in_triton, inputs).items():
        assert torch.equal(x, expected[name]), name


def test_a_call_repeated_gives_the_same_bits():
    inputs = one_head(L=40, H_v=2)
    first, again = (outputs_and_grads(in_triton, inputs) for _ in range(2))
    assert all(torch.equal(x, again[name]) for name, x in first.items())


def test_mix_is_within_budget():
    generator = torch.Generator().manual_seed(1)
    normal = partial(torch.randn, generator=generator)
    tokens = {"q": normal(1, 20, 1, 18), "k": normal(1, 20, 1, 18), "v": normal(1, 20, 2, 5)}
    inputs = tokens | {"a": normal(1, 20, 2), "b": normal(1, 20, 2), "A_log": normal(2), "dt_bias": normal(2) - 3}
    forms = partial(in_triton, gated_delta_mix), partial(gated_delta_mix, backend="reference")
    assert_within_budget(*forms, inputs, ("a", "b", "A_log", "dt_bias"))


def test_operator_passes_torch_opcheck():
    leaves = tuple(x.to(DEVICE).requires_grad_() for x in one_head(L=5, d_k=3, d_v=2).values())
    torch.library.opcheck(operator("gated_delta_rule", "triton"), (*leaves, None))


def test_it_is_compiled_and_exported_whole():
    inputs = one_head(L=20)
    compiled = torch.compile(in_triton, backend="aot_eager", fullgraph=True)
    expected = outputs_and_grads(in_triton, inputs)
    for name, x in outputs_and_grads(compiled, inputs).items():
        assert torch.equal(x, expected[name]), name

    class Rule(torch.nn.Module):
        def forward(self, *inputs):
            return gated_delta_rule(*inputs, backend="triton")

    arguments = tuple(x.to(DEVICE) for x in inputs.values())
    exported = torch.export.export(Rule(), arguments).module()
    assert torch.equal(exported(*arguments)[0].cpu(), expected["output 0"])


def test_what_it_does_not_take_is_said():
    with pytest.raises(ValueError, match="takes float32, bfloat16 or float16, these"):
        in_triton(**cast(one_head(L=2), torch.float64))
    with pytest.raises(ValueError, match="takes d_k up to 256, q has 257"):
        in_triton(**one_head(L=2, d_k=257))
    with pytest.raises(ValueError, match="takes tensors on a GPU, these are on meta"):
        gated_delta_rule(**{n: x.to("meta") for n, x in one_head(L=2).items()}, backend="triton")
