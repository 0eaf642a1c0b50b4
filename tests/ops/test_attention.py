from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from budget import assert_within_budget, cast, operator, outputs_and_grads, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gated_deltanet.ops.attention import BACKENDS, KVCache, attention_step_, sdpa
from gated_deltanet.ops.attention import attention as attention_op
from gated_deltanet.ops.attention.sdpa import BLOCK

IN_FLOAT64 = [name for name in BACKENDS if not name.startswith("cpp")]  # test_attention_cpp.py has the native one

attention: Any = attention_op  # whose cache is None only where keep_cache is False
ROW = (0, 0, 5, 5, 33, 50, 50)  # ends of packed sequences, empty ones first, inside and last


def random_inputs(B=2, L=50, H=6, H_kv=2, d=8, d_v=12, N=None, W=None, seed=0) -> dict[str, Tensor]:
    """With W, a cache of W slots."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    inputs = {"q": normal(B, L, H, d), "k": normal(B, L, H_kv, d), "v": normal(B, L, H_kv, d_v)}
    if W is not None:
        inputs |= {"k_cache": normal(N or B, W, H_kv, d), "v_cache": normal(N or B, W, H_kv, d_v)}
    return inputs


def assert_attention_within_budget(inputs, **options):
    assert_within_budget(partial(attend, **options), partial(attend, **options | {"backend": "reference"}), inputs)


def attend(q, k, v, k_cache=None, v_cache=None, length=None, **options):
    """`attention` as a function of tensors only: o, and the cache's k and v."""
    cache = None if k_cache is None else KVCache(k_cache, v_cache, torch.tensor(length))
    o, cache = attention(q, k, v, cache, **options)
    return o, cache.k, cache.v


@pytest.mark.parametrize("window", [None, 2, 37, BLOCK])
@pytest.mark.parametrize("L", [2, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 9])
def test_sdpa_is_within_budget_of_the_reference(window, L):
    assert_attention_within_budget(random_inputs(L=L, H=3, H_kv=1), window=window, backend="sdpa")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 37])
def test_dtypes_are_within_budget(dtype, window):
    inputs, options = cast(random_inputs(L=100, W=37), dtype), {"length": [20, 20], "window": window}
    assert {x.dtype for x in attend(**inputs, **options)} == {dtype}
    assert_attention_within_budget(inputs, **options, backend="sdpa")


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("length", [(3, 3), (0, 5), (7, 2), (31, 12)])
@pytest.mark.parametrize("L", [0, 1, BLOCK + 3])
def test_cached_tokens_of_equal_and_unequal_number_are_within_budget(window, length, L):
    inputs = random_inputs(L=L, W=window or 40)
    assert_attention_within_budget(inputs, length=length, window=window, backend="sdpa")


@pytest.mark.parametrize("backend", IN_FLOAT64)
@pytest.mark.parametrize("window", [None, 1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_equal_separate_ones(backend, window, dtype):
    length = [4, 0, 9, 2, 7, 8]
    inputs = cast(random_inputs(B=1, N=6, W=window or 11), torch.float64)
    packed = partial(attend, length=length, cu_seqlens=torch.tensor(ROW, dtype=dtype), window=window, backend=backend)

    alone = partial(attend, window=window, backend="reference")

    def separately(k_cache, v_cache, **tokens):
        parts = [
            alone(*(x[:, a:b] for x in tokens.values()), k_cache[[i]], v_cache[[i]], [length[i]])
            for i, (a, b) in enumerate(pairwise(ROW))
        ]
        o, *rings = zip(*parts, strict=True)
        W = window or 11 + 28
        return torch.cat(o, 1), *(
            torch.cat([F.pad(x, (0, 0, 0, 0, 0, W - x.shape[1])) for x in ring]) for ring in rings
        )

    expected = outputs_and_grads(separately, inputs)
    for name, got in outputs_and_grads(packed, inputs).items():
        assert relative_error(got, expected[name]) < 1e-12, name


@pytest.mark.parametrize("backend", IN_FLOAT64)
@pytest.mark.parametrize("window", [None, 1, 6, 49, 80])
@pytest.mark.parametrize("cut", [0, 1, 6, 30, 50])
def test_cutting_a_sequence_and_carrying_the_cache_changes_nothing(backend, window, cut):
    def cut_in_two(q, k, v, cut=cut):
        o1, cache = attention(q[:, :cut], k[:, :cut], v[:, :cut], window=window, backend=backend)
        o2, cache = attention(q[:, cut:], k[:, cut:], v[:, cut:], cache, window=window, backend=backend)
        assert cache.length.tolist() == [50, 50]
        return torch.cat([o1, o2], 1), cache.k, cache.v

    inputs = cast(random_inputs(), torch.float64)
    whole = outputs_and_grads(partial(cut_in_two, cut=0), inputs)
    for name, got in outputs_and_grads(cut_in_two, inputs).items():
        assert relative_error(got, whole[name]) < 1e-12, name


@pytest.mark.parametrize(("L", "window"), [(1, None), (50, 1)])
def test_one_visible_token_is_its_value(L, window):
    inputs = random_inputs(L=L)
    o, _ = attention(**inputs, window=window)
    assert relative_error(o, inputs["v"].repeat_interleave(3, 2)) < 1e-6


@pytest.mark.parametrize("window", [None, 7])
def test_cache_holds_token_t_in_slot_t_modulo_its_size_and_the_old_one_is_not_changed(window):
    inputs = random_inputs(L=17)
    _, old = attention(**{n: x[:, :5] for n, x in inputs.items()}, window=window)
    before = [x.clone() for x in old]
    _, cache = attention(**{n: x[:, 5:] for n, x in inputs.items()}, cache=old, window=window)
    assert all(map(torch.equal, old, before))
    W = window or 17
    assert cache.k.shape[1] == cache.v.shape[1] == W
    for t in range(17 - W, 17):
        assert torch.equal(cache.k[:, t % W], inputs["k"][:, t])
        assert torch.equal(cache.v[:, t % W], inputs["v"][:, t])


@pytest.mark.parametrize("backend", IN_FLOAT64)
@pytest.mark.parametrize("window", [None, 7])
def test_torch_attention_with_an_explicit_mask_agrees(backend, window):
    inputs = cast(random_inputs(d_v=8), torch.float64)
    mask = torch.ones(50, 50, dtype=torch.bool).tril().triu(1 - (window or 50))

    def theirs(q, k, v):
        q, k, v = (x.transpose(1, 2).repeat_interleave(6 // x.shape[2], 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    expected = outputs_and_grads(theirs, inputs)
    ours = outputs_and_grads(lambda **x: attention(**x, window=window, backend=backend)[0], inputs)
    for name, got in ours.items():
        assert relative_error(got, expected[name]) < 1e-12, name


@pytest.mark.parametrize("window", [None, 1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_step_in_place_is_the_full_form(window, dtype):
    inputs = cast(random_inputs(B=1, L=50), dtype)
    o, whole = attention(**inputs, window=window)
    _, cache = attention(**{n: x[:, :3] for n, x in inputs.items()}, window=window)
    for t in range(3, 50):
        given, (o_t, cache) = cache, attention_step_(*(x[:, t] for x in inputs.values()), cache, window=window)
        assert relative_error(o_t, o[:, t]) < 4 * torch.finfo(dtype).eps
        assert cache.k.shape[1] == cache.v.shape[1] <= (window or 2 * t)
        assert cache is given or window is None
    assert cache.length.tolist() == [50]
    assert torch.equal(cache.k[:, : window or 50], whole.k)
    assert torch.equal(cache.v[:, : window or 50], whole.v)


@pytest.mark.parametrize("window", [None, 4])
def test_step_with_unequal_lengths_is_each_sequence_alone(window):
    rows, tokens = random_inputs(B=1, L=50, N=6), cast(random_inputs(B=6, L=9, seed=1), torch.float32)
    _, cache = attention(**rows, window=window, cu_seqlens=torch.tensor(ROW))
    expected, _ = attention(**tokens, cache=cache, window=window)
    for t in range(9):
        o, cache = attention_step_(*(x[:, t] for x in tokens.values()), cache, window=window)
        assert relative_error(o, expected[:, t]) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 1, 4, 70])
def test_tokens_one_by_one_equal_the_block_form_and_leave_the_given_cache(window):
    """Lengths from 0 on, and past the room of a copy: 64 slots."""
    rows, tokens = random_inputs(B=1, L=50, N=6), random_inputs(B=6, L=70, seed=1)
    _, cache = attention(**rows, window=window, cu_seqlens=torch.tensor(ROW))
    expected, whole = attention(**tokens, cache=cache, window=window)
    for t in range(70):
        given, before = cache, [x.clone() for x in cache]
        o, cache = attention(*(x[:, t : t + 1] for x in tokens.values()), given, window=window)
        assert relative_error(o, expected[:, t : t + 1]) < 1e-5
        assert all(map(torch.equal, given, before))
    assert torch.equal(cache.length, whole.length)
    for ring, full in zip(cache[:2], whole[:2], strict=True):
        slots = min(ring.shape[1], full.shape[1])
        assert torch.equal(ring[:, :slots], full[:, :slots])


def test_step_refuses_gradients():
    q, k, v = (x[:, 0] for x in random_inputs(L=1).values())
    cache = KVCache(k.new_zeros(2, 4, 2, 8), v.new_zeros(2, 4, 2, 12), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="no_grad"):
        attention_step_(q.requires_grad_(), k, v, cache)


@pytest.mark.parametrize("backend", IN_FLOAT64)
@pytest.mark.parametrize("window", [None, 3])
def test_gradcheck(backend, window):
    inputs = cast(random_inputs(L=5, H=2, H_kv=1, d=3, d_v=2, W=3), torch.float64)
    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(partial(attend, length=[3, 2], window=window, backend=backend), leaves)


def test_time_and_memory_of_a_window_are_linear_in_the_length(monkeypatch):
    monkeypatch.setattr(sdpa, "BLOCK", 64)

    def scores(L, **options):
        with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
            outputs_and_grads(partial(attend, backend="sdpa", **options), random_inputs(1, L, 1, 1, 4, 4))
        shapes = [e.input_shapes for e in profile.events() if e.name == "aten::scaled_dot_product_attention"]
        return sum(q[2] * k[2] for q, k, *_ in shapes), max(e.cpu_memory_usage for e in profile.events())

    (few, small), (many, large) = scores(1024, window=100), scores(8192, window=100)
    assert many < 8.5 * few
    assert large < 10 * small
    ends = torch.arange(0, 8193, 128)
    assert scores(8192, cu_seqlens=ends)[0] == 2 * 64 * 128 * 128  # forward, and again in backward


@given(
    st.integers(1, 3), st.integers(0, 40), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5),
    st.sampled_from([None, 1, 2, 5, 30]), st.lists(st.integers(0, 30), min_size=3, max_size=3),
)  # fmt: skip
def test_any_shape_and_cache_agrees_with_the_reference(B, L, H_kv, group, d, d_v, window, length):
    inputs = cast(random_inputs(B, L, H_kv * group, H_kv, d, d_v, W=window or 30), torch.float64)
    options = {"length": length[:B], "window": window}
    expected = outputs_and_grads(partial(attend, **options, backend="reference"), inputs)
    for name, got in outputs_and_grads(partial(attend, **options), inputs).items():
        assert torch.allclose(got, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 50, 2, 9)}, r"k is .* with d = 8, as q has"),
        ({"q": torch.zeros(2, 50, 5, 8)}, "q has 5 heads, expected a multiple of the 2 heads of k and v"),
        ({"v": torch.zeros(2, 50, 2, 12).half()}, "v is torch.float16, expected torch.float32, as q is"),
        ({"window": 0}, "window is 0, expected a whole number, at least 1"),
        ({"window": 5, "W": 4}, r"cache.k is \[2, 4, 2, 8\], expected \[N, window, H_kv, d\] = \[2, 5, 2, 8\]"),
        ({"W": 4, "length": [4, 5]}, "cache.length is up to 5, expected at most cache.k's 4 slots"),
        ({"W": 4, "length": [4.0, 4.0]}, "cache.length is torch.float32, expected torch.int64"),
        ({"W": 4, "length": [4]}, r"cache.length is \[1\], expected \[N\] = \[2\]"),
        ({"cu_seqlens": torch.tensor([0, 50])}, "the batch has 2 rows"),
        (
            {"q": torch.zeros(2, 50, 6, 7), "k": torch.zeros(2, 50, 2, 7), "rope_theta": 10.0},
            "q has heads of 7 numbers",
        ),
        ({"backend": "flash"}, "backend is 'flash', expected one of auto, reference, sdpa, cpp"),
    ],
)
def test_bad_input_is_named(change, message):
    change = {"length": [0, 0]} | change
    with pytest.raises(ValueError, match=message):
        attend(**random_inputs(W=change.pop("W", None)) | change)


@pytest.mark.parametrize("backend", IN_FLOAT64)
@pytest.mark.parametrize("window", [None, 3])
def test_operator_passes_torch_opcheck(backend, window):
    leaves = [x.requires_grad_() for x in random_inputs(L=5, H=2, H_kv=1, d=3, d_v=2, W=3).values()]
    torch.library.opcheck(operator("attention", backend), (*leaves, torch.tensor([3, 2]), None, window))


def test_no_cache_is_kept_if_nobody_wants_it():
    q, k, v = (torch.randn(2, 9, H, 4) for H in (4, 2, 2))
    o, cache = attention(q, k, v, window=3)
    without, nothing = attention(q, k, v, window=3, keep_cache=False)
    assert torch.equal(o, without)
    assert cache is not None
    assert nothing is None
