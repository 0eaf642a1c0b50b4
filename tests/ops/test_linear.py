"""`linear` and packed weights: `-k cpp` for the native form."""

from functools import partial

import pytest
import torch
from addresses import displaced
from budget import assert_within_budget, cast, operator, outputs_and_grads, skip_if_refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gated_deltanet import ops
from gated_deltanet.bench.budget import Yardstick
from gated_deltanet.ops import linear, native, pack
from gated_deltanet.ops.linear import BACKENDS, FORMATS, PackedWeight, Quantised, cpp, embedding_rows, quantise

reference = partial(linear, backend="reference")
SHAPES = [(1, 7, 5), (2, 33, 31), (3, 64, 257), (7, 32, 32), (9, 40, 600), (19, 65, 96)]
SHAPES += [(0, 5, 6), (4, 0, 6), (4, 5, 0)]
needs_native = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))


def random_inputs(M: int, N: int, K: int, *, seed=0) -> dict[str, Tensor]:
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return {"x": normal(M, K), "weight": normal(N, K) / max(1, K) ** 0.5, "bias": normal(N), "added": normal(M, N)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_backend_is_within_budget_of_the_reference(backend, shape):
    assert_within_budget(partial(linear, backend=backend), reference, random_inputs(*shape))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_weights_are_within_budget(backend, format, shape):
    inputs = random_inputs(*shape)
    weight = pack(inputs.pop("weight"), format)

    oracle = partial(linear, weight=weight, backend="reference")
    assert_within_budget(partial(linear, weight=weight, backend=backend), oracle, inputs)


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_a_packed_weight_of_floats_gives_what_they_give(format):
    inputs = random_inputs(5, 70, 100)
    weight = pack(inputs["weight"], format)
    packed = reference(**cast(inputs, torch.float64) | {"weight": weight})
    assert torch.equal(packed, reference(**cast(inputs | {"weight": weight.to_dense()}, torch.float64)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_whole_numbers_are_multiplied_exactly(backend, format):
    """Where scales are powers of two and sums are small, nothing is rounded: not x, nor a product, nor a sum."""
    whole = torch.arange(-40 * 96, 40 * 96, 2).view(40, 96) % 15 - 7
    weight = pack(Quantised(whole.to(torch.int8), torch.full((40, 3), 0.25).half()), format)
    x = (torch.arange(9 * 96).view(9, 96) * 37 % 255 - 127).float()
    x[:, ::32] = 127
    expected = x.double() @ (whole.double() / 4).mT
    assert torch.equal(linear(x, weight, backend=backend).double(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_what_is_not_finite_stays_in_its_row(backend, format):
    inputs = random_inputs(4, 40, 70)
    weight, x = pack(inputs["weight"], format), inputs["x"]
    expected = linear(x, weight, backend=backend)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x[2, 35] = bad
        y = linear(x, weight, backend=backend)
        assert not y[2].isfinite().any()
        assert torch.equal(y[[0, 1, 3]], expected[[0, 1, 3]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_within_budget(backend, dtype):
    skip_if_refused(backend, dtype)
    inputs = cast(random_inputs(5, 50, 70), dtype)
    assert linear(**inputs, backend=backend).dtype == dtype
    assert_within_budget(partial(linear, backend=backend), reference, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_in_bfloat16_learns_behind_float32_inputs(backend):
    inputs = random_inputs(5, 50, 70)
    inputs["weight"] = inputs["weight"].bfloat16()
    grads = outputs_and_grads(partial(linear, backend=backend), inputs)
    assert grads["dweight"].dtype == torch.bfloat16
    wide = outputs_and_grads(reference, inputs | {"weight": inputs["weight"].float()})
    assert torch.equal(grads["dweight"], wide["dweight"].bfloat16()) or torch.allclose(
        grads["dweight"].float(), wide["dweight"], rtol=2**-8
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(5, 7), (32, 32), (70, 100), (33, 513)])
def test_packing_keeps_every_number(format, shape):
    W = random_inputs(1, *shape)["weight"]
    if format in ("int8", "int4"):
        whole, scale = quantise(W, format)
        expected = (whole.unflatten(1, (-1, 32)) * scale.float()[..., None]).flatten(1)[:, : shape[1]]
    else:
        expected = W.to(getattr(torch, format)).float()
    assert torch.equal(pack(W, format).to_dense(), expected)


@pytest.mark.parametrize(("format", "error"), [("int8", 0.006), ("int4", 0.1)])
def test_rounding_errs_little(format, error):
    W = random_inputs(1, 64, 320)["weight"]
    assert float((pack(W, format).to_dense() - W).norm() / W.norm()) < error


def test_rounded_weights_fit_their_bits():
    W = torch.cat([torch.randn(3, 64), torch.zeros(2, 64), torch.full((1, 64), 1e-9), torch.full((1, 64), 3e4)])
    for format, least, most in (("int8", -127, 127), ("int4", -8, 7)):
        whole, scale = quantise(W, format)
        assert least <= int(whole.min())
        assert int(whole.max()) <= most
        assert scale.isfinite().all()
        assert (pack(W, format).to_dense()[3:5] == 0).all()
    with pytest.raises(ValueError, match="not finite"):
        quantise(torch.tensor([[float("inf")]]), "int8")


@needs_native
@pytest.mark.parametrize("format", ["", *FORMATS])
def test_cpp_a_row_has_the_same_bits_among_others(format):
    """One row, few and many go different ways; so do one group of inputs and several, and pages and threads."""
    inputs = random_inputs(67, 75, 700)
    x, added = inputs["x"], inputs["added"]
    weight = pack(inputs["weight"], format) if format else inputs["weight"]
    before = torch.get_num_threads()
    expected = linear(x, weight, inputs["bias"], added, backend="cpp")
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33):
                part = displaced(x[20 : 20 + rows].clone(), rows % 7)
                y = linear(part, weight, inputs["bias"], added[20 : 20 + rows], backend="cpp")
                assert torch.equal(y, expected[20 : 20 + rows]), (threads, rows)
    finally:
        torch.set_num_threads(before)


@needs_native
@pytest.mark.parametrize("format", FORMATS)
def test_cpp_gives_the_bits_of_the_floats_a_packed_weight_stands_for(format):
    inputs = random_inputs(11, 75, 300)
    weight = pack(inputs["weight"], format)
    assert torch.equal(cpp.unpack(weight.data, format, 75, 300), weight.to_dense())
    if format in ("float32", "bfloat16"):
        dense = linear(**inputs | {"weight": weight.to_dense()}, backend="cpp")
        assert torch.equal(linear(**inputs | {"weight": weight}, backend="cpp"), dense)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(1, 7, 5), (2, 33, 31), (3, 64, 257), (4, 50, 128), (7, 29, 75), (9, 40, 600), (4, 0, 6), (2, 5, 0)]
)
def test_cpp_few_rows_of_a_weight_as_it_is(shape, dtype):
    inputs = random_inputs(*shape)
    del inputs["added"]
    inputs = cast(inputs, dtype)
    together = cpp.few_rows(**inputs)
    if shape[1]:
        misses = Yardstick(reference, inputs, ()).misses({"output 0": together})
        assert not misses, misses
    for row, y in zip(inputs["x"], together, strict=True):
        assert torch.equal(cpp.few_rows(row[None], inputs["weight"], inputs["bias"])[0], y)


@pytest.mark.parametrize("format", FORMATS)
def test_cpp_rows_of_a_packed_embedding(format):
    weight = pack(random_inputs(1, 75, 300)["weight"], format)
    tokens = torch.tensor([[3, 74, 0], [33, 3, 31]])
    assert torch.equal(embedding_rows(weight, tokens), weight.to_dense()[tokens])


def test_packed_whole_numbers_are_packed_as_they_are():
    W = random_inputs(1, 40, 70)["weight"]
    for format in ("int8", "int4"):
        again = pack(Quantised(*quantise(W, format)), format, K=70)
        assert torch.equal(again.data, pack(W, format).data)
        assert again.shape == (40, 70)


@pytest.mark.parametrize("format", FORMATS)
def test_compiled_is_the_same(format):
    inputs = random_inputs(3, 40, 70)
    weight = pack(inputs.pop("weight"), format)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x, bias, added):
        return linear(x, weight, bias, added)

    assert torch.equal(run(**inputs), linear(**inputs, weight=weight))


@given(st.integers(0, 12), st.integers(0, 80), st.integers(0, 80), st.sampled_from(["", *FORMATS]))
def test_cpp_any_shape_is_within_budget(M, N, K, format):
    inputs = random_inputs(M, N, K, seed=M)
    if not format:
        return assert_within_budget(linear, reference, inputs, neighbours=4)
    weight = pack(inputs.pop("weight"), format)
    oracle = partial(reference, weight=weight)
    return assert_within_budget(partial(linear, weight=weight), oracle, inputs, neighbours=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(5, 23)}, "weight is .* with K = 24, as x has"),
        ({"weight": torch.zeros(5, 24).half()}, "weight is torch.float16, expected torch.float32, as x is, or torch.b"),
        ({"bias": torch.zeros(6)}, "bias is .* with N = 5, as weight has"),
        ({"added": torch.zeros(2, 5)}, "added is .* with x0 = 3, as x has"),
        ({"weight": PackedWeight(torch.zeros(9, dtype=torch.uint8), "int8", (5, 24))}, "weight.data is .* uint8 .1088"),
        ({"weight": PackedWeight(torch.zeros(9), "int3", (5, 24))}, "weight.format is 'int3', expected one of float32"),
        ({"backend": "cuda"}, "backend is 'cuda', expected one of auto, reference, cpp"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        linear(**random_inputs(3, 5, 24) | change)
    with pytest.raises(ValueError, match="format is 'int3', expected one of"):
        pack(torch.zeros(3, 4), "int3")


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_passes_torch_opcheck(backend):
    leaves = [x.requires_grad_() for x in random_inputs(2, 5, 7).values()]
    torch.library.opcheck(operator("linear", backend), (*leaves, "", 5))


def test_the_op_is_listed():
    assert set(ops.backends()["linear"]) == set(BACKENDS)
