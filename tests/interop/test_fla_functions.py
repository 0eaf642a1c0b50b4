"""The functions of gated_deltanet.interop.fla against a recurrence in float64 written here from FLA's documentation."""

import inspect
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from budget import assert_within_budget, cast, relative_error, takes
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from gated_deltanet.interop import fla

SIGNATURES = {  # of FLA 0.6.0; after the star, what FLA reads from **kwargs
    "chunk_gated_delta_rule": "q k v g beta scale=None initial_state=None output_final_state=False"
    " use_qk_l2norm_in_kernel=False use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False"
    " cu_seqlens=None cu_seqlens_cpu=None chunk_indices=None cp_context=None"
    " * use_gate_in_kernel=False A_log=None dt_bias=None chunk_size=64",
    "fused_recurrent_gated_delta_rule": "q k v g=None gk=None gv=None beta=None scale=None initial_state=None"
    " output_final_state=False use_qk_l2norm_in_kernel=False use_gate_in_kernel=False A_log=None dt_bias=None"
    " use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False cu_seqlens=None",
    "chunk_delta_rule": "q k v beta scale=None initial_state=None output_final_state=False"
    " use_qk_l2norm_in_kernel=False cu_seqlens=None cu_seqlens_cpu=None * chunk_size=64",
    "fused_recurrent_delta_rule": "q k v beta=None scale=None initial_state=None output_final_state=False"
    " use_qk_l2norm_in_kernel=False cu_seqlens=None",
    "chunk_simple_gla": "q k v g=None g_gamma=None scale=None initial_state=None output_final_state=False"
    " state_v_first=False cu_seqlens=None cu_seqlens_cpu=None * chunk_size=None",
    "fused_recurrent_simple_gla": "q k v g=None g_gamma=None scale=None initial_state=None output_final_state=False"
    " reverse=False state_v_first=False cu_seqlens=None",
    "chunk_retention": "q k v scale=None initial_state=None output_final_state=False cu_seqlens=None * chunk_size=None",
    "fused_recurrent_retention": "q k v scale=None initial_state=None output_final_state=False reverse=False"
    " state_v_first=False cu_seqlens=None",
    "chunk_gla": "q k v g scale=None initial_state=None output_final_state=False state_v_first=False cu_seqlens=None"
    " cu_seqlens_cpu=None",
    "fused_recurrent_gla": "q k v gk=None gv=None scale=None initial_state=None output_final_state=False reverse=False"
    " state_v_first=False cu_seqlens=None",
}
GATES = {  # what each function is tested with, unless a test says otherwise
    "chunk_gated_delta_rule": ("g", "beta"),
    "fused_recurrent_gated_delta_rule": ("g", "beta"),
    "chunk_delta_rule": ("beta",),
    "fused_recurrent_delta_rule": ("beta",),
    "chunk_simple_gla": ("g",),
    "fused_recurrent_simple_gla": ("g",),
    "chunk_retention": (),
    "fused_recurrent_retention": (),
    "chunk_gla": ("gk",),  # which it calls g
    "fused_recurrent_gla": ("gk",),
}
DELTA = [name for name in GATES if "delta" in name]
ALL_GATES = ("g", "g_gamma", "gk", "gv", "beta", "beta_v", "A_log", "dt_bias", "a")
V_FIRST = [name for name, arguments in SIGNATURES.items() if "state_v_first" in arguments]
REVERSE = [name for name, arguments in SIGNATURES.items() if "reverse" in arguments]
ENDS = [0, 0, 5, 5, 38, 69, 70, 70]  # empty sequences first, inside and last


def random_inputs(name, gates=None, B=2, T=70, K=5, V=7, N=None, seed=0) -> dict[str, Any]:
    """Sizes that cannot be confused. The gate of a function's own name is given by `call`."""
    H, HV = (2, 6) if "gated" in name else (3, 3)
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    shapes = {"g": (B, T, HV), "g_gamma": (HV,), "gk": (B, T, HV, K), "gv": (B, T, HV, V)}
    x = {"q": normal(B, T, H, K), "k": normalize(normal(B, T, H, K), dim=-1), "v": normal(B, T, HV, V)}
    x |= {gate: logsigmoid(normal(shape) + 3) for gate, shape in shapes.items()}
    x |= {"beta": normal(B, T, HV).sigmoid(), "beta_v": normal(B, T, HV, V).sigmoid()}
    x |= {"a": normal(B, T, HV), "b": normal(B, T, HV), "A_log": normal(HV), "dt_bias": normal(HV)}
    x["initial_state"] = normal(N or B, HV, K, V)
    gates = GATES[name] if gates is None else gates
    return {n: x[n] for n in ("q", "k", "v", *gates, "initial_state")}


def call(name, **settings):
    """A function with its last state asked for, as outputs_and_grads calls it."""
    renamed = {"a": "g", "b": "beta", "beta_v": "beta"} | ({"gk": "g"} if name == "chunk_gla" else {})

    def form(**inputs):
        inputs = {renamed.get(n, n): x for n, x in inputs.items()}
        return getattr(fla, name)(**inputs, output_final_state=True, **settings)

    return form


def recurrence(
    name: str,
    *,
    scale: float | None = None,
    normalise=False,
    reverse=False,
    beta_max=1.0,
    ends: list[int] | None = None,
):
    """A function as FLA documents it, one token after the other."""

    def form(q, k, v, initial_state=None, beta=None, beta_v=None, b=None, **gates):
        K, HV, V = q.shape[-1], *v.shape[2:]
        if normalise:
            q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q, k = (x.repeat_interleave(HV // x.shape[2], 2) for x in (q, k))
        q = q * (K**-0.5 if scale is None else scale)
        decay = decays(name, q, v, **gates).exp()
        beta = b.sigmoid() * beta_max if b is not None else beta
        beta = beta_v if beta_v is not None else beta[..., None] if beta is not None else torch.ones_like(v)
        spans = [(0, v.shape[1])] if ends is None else list(pairwise(ends))
        N = v.shape[0] if ends is None else len(spans)
        S = q.new_zeros(N, HV, K, V) if initial_state is None else initial_state
        o, states = torch.zeros_like(v), []
        for i, (first, end) in enumerate(spans):
            S_t = S if ends is None else S[i : i + 1]
            for t in reversed(range(first, end)) if reverse else range(first, end):
                S_t = decay[:, t] * S_t
                old = (k[:, t, :, :, None] * S_t).sum(-2) if name in DELTA else 0
                u = beta[:, t] * (v[:, t] - old) if name in DELTA else v[:, t]
                S_t = S_t + k[:, t, :, :, None] * u[:, :, None]
                o = o.index_add(1, torch.tensor([t]), (q[:, t, :, :, None] * S_t).sum(-2)[:, None])
            states.append(S_t)
        return o, torch.cat(states)

    return form


def decays(name, q, v, g=None, g_gamma=None, gk=None, gv=None, a=None, A_log=None, dt_bias=None) -> Tensor:
    """The sum of all log decays, [B, T, HV, K, V]."""
    total = q.new_zeros(*q.shape, v.shape[-1])
    if "retention" in name:
        total = total + (1 - 2.0 ** (-5 - torch.arange(q.shape[2], dtype=q.dtype))).log()[:, None, None]
    if a is not None and A_log is not None:
        total = total - (A_log.exp() * softplus(a if dt_bias is None else a + dt_bias))[..., None, None]
    total = total if g is None else total + g[..., None, None]
    total = total if g_gamma is None else total + g_gamma[:, None, None]
    total = total if gk is None else total + gk[..., None]
    return total if gv is None else total + gv[..., None, :]


def check(name, inputs, settings=None, neighbours=0, **meaning):
    """settings: of the function. meaning: the same for the recurrence."""
    form = call(name, **settings or {})
    assert_within_budget(form, recurrence(name, **meaning), inputs, ALL_GATES, neighbours)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_flas_names_order_and_defaults(name):
    found, star = [], False
    for parameter in inspect.signature(getattr(fla, name)).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            found, star = [*found, "*"], True
        default = "" if parameter.default is parameter.empty else f"={parameter.default}"
        found.append(parameter.name + default)
    assert " ".join(found) == SIGNATURES[name]
    assert sorted(SIGNATURES) == fla.__all__


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_function_is_within_budget_of_the_recurrence(name, dtype):
    inputs = cast(random_inputs(name), dtype)
    o, S = call(name)(**inputs)
    assert o.dtype == dtype
    assert S.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    check(name, inputs, {"scale": 0.3}, scale=0.3)


@pytest.mark.parametrize("name", SIGNATURES)
def test_without_scale_state_or_wish_for_the_last_state(name):
    inputs = random_inputs(name)
    del inputs["initial_state"]
    check(name, inputs)
    o, _ = call(name)(**inputs)
    gates = {"g" if (n, name) == ("gk", "chunk_gla") else n: x for n, x in inputs.items()}
    result = getattr(fla, name)(**gates)
    assert torch.equal(result[0], o)
    assert result[1] is None


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_are_within_budget(name, dtype):
    inputs = random_inputs(name, B=1, N=7)
    check(name, inputs, {"cu_seqlens": torch.tensor(ENDS, dtype=dtype)}, ends=ENDS)


@pytest.mark.parametrize("name", DELTA)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_l2_norm_inside_is_within_budget(name, scale, dtype):
    inputs = random_inputs(name)
    inputs = cast(inputs | {"k": inputs["k"] * (1 + inputs["q"].square())}, dtype)
    settings = {"scale": scale, "use_qk_l2norm_in_kernel": True}
    check(name, inputs, settings, neighbours=4, scale=scale, normalise=True)  # unit keys are rounded once more


@pytest.mark.parametrize("name", DELTA[:2])
@pytest.mark.parametrize("gates", [("a", "b", "A_log"), ("a", "b", "A_log", "dt_bias")])
@pytest.mark.parametrize("beta_max", [1, 2])
def test_gates_inside_are_within_budget(name, gates, beta_max):
    settings = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": beta_max == 2}
    check(name, random_inputs(name, gates), settings, beta_max=beta_max)


@pytest.mark.parametrize(
    ("name", "gates"),
    [("fused_recurrent_gated_delta_rule", gates) for gates in (
        (), ("beta",), ("g",), ("gk", "beta"), ("gv", "beta"), ("g", "beta_v"), ("g", "gv", "beta_v"),
        ("g", "gk", "gv", "beta_v"),
    )]
    + [("fused_recurrent_delta_rule", gates) for gates in ((), ("beta_v",))]
    + [(f"{form}_simple_gla", gates) for form in ("chunk", "fused_recurrent") for gates in ((), ("g_gamma",))]
    + [("fused_recurrent_gla", gates) for gates in ((), ("gv",), ("gk", "gv"))],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_every_choice_of_gates_is_within_budget(name, gates, packed):
    if packed:
        inputs = random_inputs(name, gates, B=1, N=7)
        check(name, inputs, {"cu_seqlens": torch.tensor(ENDS)}, ends=ENDS)
    else:
        check(name, random_inputs(name, gates))


@pytest.mark.parametrize("name", REVERSE)
@pytest.mark.parametrize("packed", [False, True])
def test_reverse_reads_each_sequence_from_its_end(name, packed):
    gates = ("gk", "gv") if name == "fused_recurrent_gla" else None
    if packed:
        settings = {"cu_seqlens": torch.tensor(ENDS), "reverse": True}
        check(name, random_inputs(name, gates, B=1, N=7), settings, reverse=True, ends=ENDS)
    else:
        check(name, random_inputs(name, gates), {"reverse": True}, reverse=True)


@pytest.mark.parametrize(
    ("name", "old"), [(name, old) for name in V_FIRST for old in (False, True) if not (old and name == "chunk_gla")]
)
def test_a_state_with_values_first_is_the_transposed_one(name, old):
    inputs = random_inputs(name)
    o, S = call(name)(**inputs)
    transposed = inputs | {"initial_state": inputs["initial_state"].mT.contiguous()}
    if not old:
        o_v, S_v = call(name, state_v_first=True)(**transposed)
    else:
        with pytest.warns(DeprecationWarning, match="transpose_state_layout is the old name of state_v_first"):
            o_v, S_v = call(name, transpose_state_layout=True)(**transposed)
    assert torch.equal(o, o_v)
    assert torch.equal(S.mT, S_v)
    assert S_v.is_contiguous()


@pytest.mark.parametrize("name", SIGNATURES)
def test_no_tokens_leave_the_state_as_it_is(name):
    inputs = random_inputs(name, T=0)
    o, S = call(name)(**inputs)
    assert o.shape == inputs["v"].shape
    assert torch.equal(S, inputs["initial_state"])
    assert S.data_ptr() != inputs["initial_state"].data_ptr()


@pytest.mark.parametrize("name", SIGNATURES)
def test_dtypes_may_differ(name):
    inputs = random_inputs(name)
    rounded = {n: inputs[n].bfloat16() for n in ("v", "initial_state")}
    o, S = call(name)(**inputs | rounded)
    expected, S_expected = call(name)(**inputs | cast(rounded, torch.float32))
    assert o.dtype == (torch.bfloat16 if name == "fused_recurrent_gated_delta_rule" else torch.float32)
    assert relative_error(o, expected) < 4e-3
    assert torch.equal(S, S_expected)


@pytest.mark.parametrize("name", DELTA[1::2])
def test_recurrent_functions_give_the_same_bits_however_a_sequence_is_cut(name):
    if not takes("cpp-recurrent", torch.float32):
        pytest.skip("the native library cannot be used here")
    inputs = random_inputs(name)
    o, S = call(name, use_qk_l2norm_in_kernel=True)(**inputs)
    parts, state = [], inputs.pop("initial_state")
    for a, b in ((0, 1), (1, 33), (33, 70)):
        part = {n: x[:, a:b] for n, x in inputs.items()}
        o_part, state = call(name, use_qk_l2norm_in_kernel=True)(**part, initial_state=state)
        parts.append(o_part)
    assert torch.equal(torch.cat(parts, 1), o)
    assert torch.equal(state, S)


def test_what_only_concerns_flas_kernels_changes_nothing():
    inputs = random_inputs("chunk_gated_delta_rule", B=1, N=7)
    ends = torch.tensor(ENDS)
    form = partial(call, "chunk_gated_delta_rule", cu_seqlens=ends)
    for settings in ({"chunk_size": 16}, {"cu_seqlens_cpu": ends, "chunk_indices": torch.zeros(3, 2)}):
        for x, y in zip(form()(**inputs), form(**settings)(**inputs), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_compiled_call_is_one_graph(name):
    torch.compiler.reset()  # for which `form` is one function, compiled too often
    inputs, form = random_inputs(name, T=9), call(name, scale=0.3)
    for x, y in zip(torch.compile(form, backend="eager", fullgraph=True)(**inputs), form(**inputs), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", SIGNATURES)
def test_autocast_and_inference_mode_change_nothing(name):
    gates = ("g", "gk", "gv", "beta_v") if name == "fused_recurrent_gated_delta_rule" else None
    inputs, form = random_inputs(name, gates), call(name)
    o, S = form(**inputs)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in zip(form(**inputs), (o, S), strict=True):
            assert torch.equal(x, y)


WRONG = [
    ("chunk_gated_delta_rule", {"k": torch.zeros(2, 70, 3, 5)}, r"k is \[2, 70, 3, 5\], expected .* with H = 2, as q"),
    (
        "chunk_gated_delta_rule",
        {"v": torch.zeros(2, 70, 5, 7)},
        r"g is \[2, 70, 6\], expected .* with HV = 5, as v has",
    ),
    ("chunk_gated_delta_rule", {"g": None}, r"g is a NoneType, expected a tensor \[B, T, HV\]"),
    ("chunk_gated_delta_rule", {"g": torch.full((2, 70, 6), 0.5)}, "g holds 0.5, expected values ≤ 0"),
    ("chunk_gated_delta_rule", {"beta": torch.full((2, 70, 6), torch.nan)}, "beta holds NaN"),
    ("chunk_gated_delta_rule", {"scale": "1"}, "scale is '1', expected a finite number"),
    ("chunk_gated_delta_rule", {"initial_state": torch.zeros(2, 6, 7, 5)}, r"initial_state is .* = \[2, 6, 5, 7\]"),
    ("chunk_gated_delta_rule", {"initial_state": torch.zeros(2, 6, 5, 7).int()}, "initial_state is torch.int32, exp"),
    ("chunk_gated_delta_rule", {"cu_seqlens": torch.tensor([0, 70])}, "one row, but the batch has 2 rows"),
    ("chunk_gated_delta_rule", {"chunk_size": 48}, "chunk_size is 48, expected 16, 32, 64"),
    ("chunk_gated_delta_rule", {"cp_context": object()}, "cp_context is a object, expected None"),
    ("chunk_gated_delta_rule", {"use_gate_in_kernel": True}, "A_log is None, expected a tensor with use_gate_in_k"),
    ("chunk_gated_delta_rule", {"allow_neg_eigval": True}, "expected use_beta_sigmoid_in_kernel=True with it"),
    ("chunk_gated_delta_rule", {"head_first": True}, r"head_first is True, expected tensors \[B, T, H, …\]"),
    ("fused_recurrent_gated_delta_rule", {"gk": torch.zeros(2, 70, 6, 7)}, "gk is .* with K = 5, as q has"),
    ("fused_recurrent_gated_delta_rule", {"beta": torch.zeros(2, 70, 6, 5)}, "beta is .* with V = 7, as v has"),
    ("fused_recurrent_gla", {"gv": torch.ones(2, 70, 3, 7)}, "gv holds 1, expected values ≤ 0"),
    ("chunk_delta_rule", {"v": torch.zeros(2, 70, 6, 7)}, "v is .* with H = 3, as q has"),
    ("chunk_simple_gla", {"g_gamma": torch.zeros(3)}, "g and g_gamma are both given, expected at most one"),
    ("chunk_simple_gla", {"chunk_size": 48}, "chunk_size is 48, expected a power of two"),
    ("chunk_retention", {"q": torch.zeros(2, 70, 3, 5, dtype=torch.int64)}, "q is torch.int64, expected float32"),
    ("fused_recurrent_gla", {"state_v_first": True, "transpose_state_layout": True}, "is the old name of state_v_f"),
    ("fused_recurrent_simple_gla", {"reverse": True, "cu_seqlens": torch.tensor([0, 71])}, "the batch has 2 rows"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_wrong_arguments_are_named(name, change, message):
    inputs = random_inputs(name)
    with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
        getattr(fla, name)(**inputs | change)


def test_an_unknown_argument_is_refused_and_the_default_of_a_removed_one_is_not():
    inputs = random_inputs("chunk_simple_gla")
    with pytest.raises(TypeError, match="chunk_simple_gla: offsets is no argument"):
        fla.chunk_simple_gla(**inputs, offsets=None)
    with pytest.warns(DeprecationWarning, match="head_first was removed from FLA"):
        fla.chunk_simple_gla(**inputs, head_first=False)


def test_lines_of_the_page_run_as_they_stand_and_its_table_lists_every_function():
    page = (Path(__file__).parents[2] / "docs" / "interop-fla.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["final_state"].shape == (2, 4, 64, 128)
    assert names["v"].grad.isfinite().all()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set(fla.__all__)
