"""What test_attention.py asks of every backend in float64, and more, in the dtypes of the native one."""

from functools import partial
from typing import Any

import pytest
import torch
from budget import assert_within_budget, cast, outputs_and_grads, relative_error
from hypothesis import given
from hypothesis import strategies as st
from test_attention import ROW, attend, random_inputs
from test_gated_delta_rule_cpp import STRIDED

from gated_deltanet.ops import KVCache, native
from gated_deltanet.ops.attention import attention as attention_op
from gated_deltanet.ops.attention import attention_step_, cpp

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
attention: Any = attention_op
native_attention = partial(attend, backend="cpp")
reference = partial(attend, backend="reference")
DTYPES = (torch.float32, torch.bfloat16)


def assert_native_within_budget(inputs, **options):
    assert_within_budget(partial(native_attention, **options), partial(reference, **options), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"L": 1, "H": 3, "H_kv": 3, "d": 20, "d_v": 36},
        {"L": 50, "H": 6, "H_kv": 2, "d": 33, "d_v": 7},
        {"L": 131, "H": 2, "H_kv": 1, "d": 64, "d_v": 64},
        {"B": 1, "L": 150, "H": 1, "H_kv": 1, "d": 256, "d_v": 200},
        {"B": 1, "L": 600, "H": 1, "H_kv": 1, "d": 16, "d_v": 8},  # keys in parts, whose dq are summed
        {"B": 1, "L": 40, "H": 20, "H_kv": 1, "d": 8, "d_v": 8},  # more heads of one group than rows of a block
    ],
)
def test_every_instruction_set_is_within_budget(instruction_set, dtype, sizes):
    assert_native_within_budget(cast(random_inputs(**sizes), dtype))


@pytest.mark.parametrize("window", [1, 2, 31, 64, 129, 400])
@pytest.mark.parametrize("L", [2, 63, 65, 257])
def test_windows_are_within_budget(window, L):
    assert_native_within_budget(random_inputs(B=1, L=L, H=3, H_kv=1), window=window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("length", [(3, 3), (0, 5), (7, 2), (31, 12)])
@pytest.mark.parametrize("L", [2, 131])
def test_cached_tokens_of_equal_and_unequal_number_are_within_budget(dtype, window, length, L):
    assert_native_within_budget(cast(random_inputs(L=L, W=window or 40), dtype), length=length, window=window)


@pytest.mark.parametrize("window", [None, 1, 7, 100])
@pytest.mark.parametrize("cached", [True, False])
def test_packed_sequences_are_within_budget(window, cached):
    inputs = random_inputs(B=1, N=6, W=(window or 11) if cached else None)
    length = {"length": [4, 0, 9, 2, 7, 8]} if cached else {}
    assert_native_within_budget(inputs, **length, cu_seqlens=torch.tensor(ROW, dtype=torch.int32), window=window)


@pytest.mark.parametrize("keep_cache", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_rotary_positions_are_within_budget(keep_cache, packed, cached):
    sizes = {"B": 1, "N": 6} if packed else {"B": 2}
    inputs = random_inputs(**sizes, W=20 if cached else None)
    options = {"rope_theta": 100.0, "window": 20}
    options |= {"cu_seqlens": torch.tensor(ROW)} if packed else {}

    def form(q, k, v, k_cache=None, v_cache=None, *, backend):
        length = torch.tensor([4, 0, 30, 2, 7, 8][: 6 if packed else 2])
        cache = KVCache(k_cache, v_cache, length) if cached else None
        o, cache = attention(q, k, v, cache, **options, keep_cache=keep_cache, backend=backend)
        return (o, cache.k, cache.v) if keep_cache else o

    assert_within_budget(partial(form, backend="cpp"), partial(form, backend="reference"), inputs)


@pytest.mark.parametrize("cut", [0, 1, 6, 30, 50])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("rope_theta", [None, 100.0])
def test_cutting_a_sequence_and_carrying_the_cache_is_within_budget(cut, window, rope_theta):
    options = {"window": window, "rope_theta": rope_theta}

    def in_two(q, k, v):
        o1, cache = attention(q[:, :cut], k[:, :cut], v[:, :cut], **options, backend="cpp")
        o2, cache = attention(q[:, cut:], k[:, cut:], v[:, cut:], cache, **options, backend="cpp")
        return torch.cat([o1, o2], 1), cache.k, cache.v

    assert_within_budget(in_two, partial(reference, **options), random_inputs())


@given(
    st.integers(1, 3), st.integers(0, 300), st.integers(1, 2), st.integers(1, 3), st.integers(1, 40),
    st.integers(1, 40), st.sampled_from([None, 1, 2, 5, 30, 200]),
    st.lists(st.integers(0, 30), min_size=3, max_size=3), st.booleans(),
)  # fmt: skip
def test_any_shape_and_cache_is_near_the_reference(B, L, H_kv, group, d, d_v, window, length, in_half):
    inputs = random_inputs(B, L, H_kv * group, H_kv, d, d_v, W=window or 30)
    inputs = cast(inputs, torch.bfloat16) if in_half else inputs
    options = {"length": length[:B], "window": window}
    expected = outputs_and_grads(partial(reference, **options), cast(inputs, torch.float64))
    for name, got in outputs_and_grads(partial(native_attention, **options), inputs).items():
        size = expected[name].norm() if window != 1 else 1 + expected[name].norm()  # one token seen: dq is 0
        assert (got - expected[name]).norm() <= (2e-2 if in_half else 1e-5) * size + 1e-6, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(dtype, threads, restored_threads):
    inputs = cast(random_inputs(B=1, N=6, L=700, W=11, H=2, H_kv=1), dtype)
    ends = torch.tensor([0, 5, 5, 460, 560, 690, 700])
    form = partial(native_attention, length=[4, 0, 9, 2, 7, 8], cu_seqlens=ends)
    torch.set_num_threads(1)
    expected = outputs_and_grads(form, inputs)
    torch.set_num_threads(threads)
    for name, got in outputs_and_grads(form, inputs).items():
        assert torch.equal(got, expected[name]), name


@pytest.mark.parametrize("L", [1, 50])
@pytest.mark.parametrize("view", STRIDED)
def test_strides_change_nothing(view, L):
    inputs = random_inputs(L=L, W=9)
    form = partial(native_attention, length=[9, 4])
    expected = outputs_and_grads(form, inputs)
    for name, got in outputs_and_grads(lambda **x: form(**{n: STRIDED[view](y) for n, y in x.items()}), inputs).items():
        assert torch.equal(got, expected[name]), name


def test_a_token_that_sees_one_key_has_no_gradient_of_its_query():
    inputs = random_inputs(L=40, d_v=64)
    grads = outputs_and_grads(lambda **x: attention(**x, window=1, keep_cache=False, backend="cpp")[0], inputs)
    assert not grads["dq"].any()
    assert not grads["dk"].any()


def test_scores_of_hundreds_are_within_budget():
    """The sum of exp is kept beside the largest score: their logarithm together would lose digits of both."""
    inputs = random_inputs(L=70)
    assert_native_within_budget(inputs | {"q": inputs["q"] * 150})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(value):
    inputs = random_inputs(L=40)
    inputs["k"][0, 20, 0, 3] = value
    o, _ = attention(**inputs, keep_cache=False, backend="cpp")
    seen_by = torch.zeros(2, 40, 6, dtype=torch.bool)
    seen_by[0, 20:, :3] = True
    expected, _ = attention(**inputs, keep_cache=False, backend="reference")
    assert torch.equal(o.isnan().any(-1), expected.isnan().any(-1))
    assert torch.equal(o.isnan().any(-1) | seen_by, seen_by)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 600])
@pytest.mark.parametrize("heads", [{"H": 6, "H_kv": 2}, {"H": 3, "H_kv": 3}])
def test_a_step_behind_caches_of_any_length_is_within_budget(dtype, window, heads):
    inputs = cast(random_inputs(B=5, L=1, W=600, **heads, d=36, d_v=20), dtype)
    length = torch.tensor([0, 1, 255, 256, 599])

    def step(q, k, v, k_cache, v_cache):
        with torch.no_grad():
            cache = KVCache(k_cache.clone(), v_cache.clone(), length.clone())
            return attention_step_(q[:, 0], k[:, 0], v[:, 0], cache, window=window)[0][:, None]

    def whole(q, k, v, k_cache, v_cache):
        cache = KVCache(k_cache, v_cache, length)
        return attention(q, k, v, cache, window=window, keep_cache=False, backend="reference")[0]

    got = step(**inputs)
    expected = whole(**cast(inputs, torch.float64))
    assert relative_error(got, expected) < (4e-3 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit_of_a_step(threads, restored_threads):
    q, k, v, k_cache, v_cache = random_inputs(B=3, L=1, W=700).values()
    length = torch.tensor([0, 500, 699])

    def step():
        cache = KVCache(k_cache.clone(), v_cache.clone(), length.clone())
        return attention_step_(q[:, 0], k[:, 0], v[:, 0], cache)[0]

    torch.set_num_threads(1)
    expected = step()
    torch.set_num_threads(threads)
    assert torch.equal(step(), expected)


def test_a_step_tells_autograd_that_the_cache_changed():
    q, k, v, k_cache, v_cache = random_inputs(L=1, W=4).values()
    attention_step_(q[:, 0], k[:, 0], v[:, 0], KVCache(k_cache, v_cache, torch.tensor([0, 2])))
    assert k_cache._version > 0
    assert v_cache._version > 0


def test_gradients_without_what_training_keeps():
    """A graph captured without gradients may still be differentiated."""
    inputs = random_inputs(L=40, W=9)
    expected = outputs_and_grads(partial(native_attention, length=[9, 4]), inputs)
    length = torch.tensor([9, 4])
    bare = outputs_and_grads(lambda **x: cpp.OPERATOR(*x.values(), length, None, None, None, False)[0], inputs)
    assert torch.equal(bare["output 0"], expected["output 0"])
    assert torch.equal(bare["dq"], expected["dq"])


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("rope_theta", [None, 10.0])
def test_operator_passes_torch_opcheck(window, rope_theta):
    leaves = [x.requires_grad_() for x in random_inputs(L=5, H=2, H_kv=1, d=4, d_v=2, W=3).values()]
    options = (torch.tensor([3, 2]), None, window, rope_theta, True)
    torch.library.opcheck(torch.ops.gdn.attention_cpp.default, (*leaves, *options))


@pytest.mark.parametrize("zero", [{"B": 0}, {"L": 0}, {"H": 0}, {"d_v": 0}, {"L": 0, "d_v": 0}], ids=str)
def test_empty_sizes_give_what_the_reference_gives(zero):
    inputs = random_inputs(**{"L": 40} | zero)
    expected, found = (
        outputs_and_grads(lambda form=form, **x: attention(**x, keep_cache=False, backend=form)[0], inputs)
        for form in ("reference", "cpp")
    )
    for name, got in found.items():
        assert got.shape == expected[name].shape, name
        assert torch.allclose(got, expected[name], rtol=1e-4, atol=1e-5), name


def test_bad_cu_seqlens_in_a_compiled_graph_is_an_error():
    inputs = random_inputs(B=1, L=50)
    compiled = torch.compile(partial(attention, keep_cache=False), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="expected to rise from 0"):
        compiled(**inputs, cu_seqlens=torch.tensor([0, 5000]))
    torch.compiler.reset()
