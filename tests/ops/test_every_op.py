"""What holds for all ops alike: autocast, empty sizes, limits of autograd, wrong arguments."""

from inspect import signature

import pytest
import torch
from addresses import displaced
from budget import cast, outputs_and_grads, relative_error

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import flatten, round_operands
from gated_deltanet.bench.cases import every_op
from gated_deltanet.ops import packing
from gated_deltanet.ops.chunks import lay_out
from gated_deltanet.ops.gated_delta_rule import BACKENDS

CASES = {f"{case.title} {form}": (case, form) for case in every_op(L=30) for form in ops.backends()[case.op]}
NATIVE = {name: (case, form) for name, (case, form) in CASES.items() if form.startswith("cpp")}
OF_ROWS = ("gated_rms_norm", "swiglu", "linear_cross_entropy", "linear")
PACKED = [case for case in every_op(L=6) if case.op not in OF_ROWS]
STEPS = {
    "gated_delta_rule_step_": ("q", "k", "v", "log_alpha", "beta"),
    "gated_delta_mix_step_": ("q", "k", "v", "a", "b", "A_log", "dt_bias"),
    "linear_attention_step_": ("q", "k", "v", "log_alpha"),
    "selective_scan_step_": ("x", "dt", "A", "B", "C"),
    "short_conv_step_": ("x", "weight", "bias"),
    "attention_step_": ("q", "k", "v"),
}
PARAMETERS = ("A_log", "dt_bias", "A", "weight", "bias")
WRONG = (["auto"], {"auto": 1}, "text", 10**400, float("nan"), float("-inf"), object())


def titled(case):
    return case.title


@pytest.mark.parametrize(("case", "form"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(case, form, dtype):
    inputs = round_operands(case.inputs, dtype)
    expected = outputs_and_grads(case.form(form), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = outputs_and_grads(case.form(form), inputs)
    for name, x in got.items():
        assert x.dtype == expected[name].dtype
        assert torch.equal(x, expected[name]), name


@pytest.mark.parametrize(("case", "form"), NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elements", [1, 6, 12])
def test_addresses_of_the_inputs_change_no_bit_of_a_native_kernel(case, form, dtype, elements):
    inputs = round_operands(case.inputs, dtype)
    elsewhere = {n: x if x is None or not x.is_floating_point() else displaced(x, elements) for n, x in inputs.items()}
    expected = outputs_and_grads(case.form(form), inputs)
    for name, x in outputs_and_grads(case.form(form), elsewhere).items():
        assert torch.equal(x, expected[name]), name


@pytest.mark.parametrize(("case", "form"), CASES.values(), ids=CASES)
def test_an_empty_batch_gives_empty_results(case, form):
    tokens = {n: x[:0] for n, x in case.inputs.items() if x is not None and n not in PARAMETERS and n != "state"}
    inputs = case.inputs | tokens | ({"state": case.inputs["state"][:0]} if "state" in case.inputs else {})
    first, *others = flatten(case.form(form)(**inputs))
    assert first.numel() == (1 if case.op == "linear_cross_entropy" else 0)
    assert all(x.numel() == 0 for x in others)


@pytest.mark.parametrize("form", BACKENDS)
def test_a_second_derivative_is_refused_in_words(form):
    case = every_op(L=3)[0]
    q = case.inputs["q"].clone().requires_grad_()
    o, _ = case.form(form)(**case.inputs | {"q": q})
    (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once, not twice"):
        dq.sum().backward()


@pytest.mark.parametrize("case", PACKED, ids=titled)
@pytest.mark.parametrize("cu_seqlens", [[0, 6], torch.tensor([0, 6], device="meta"), torch.tensor([0.0, 6.0])])
def test_cu_seqlens_of_another_kind_is_named(case, cu_seqlens):
    with pytest.raises(ValueError, match=r"cu_seqlens is .*expected"):
        case.form("auto")(**case.inputs, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("case", PACKED, ids=titled)
def test_cu_seqlens_is_checked_once_in_a_call(case, monkeypatch):
    calls = []
    monkeypatch.setattr(packing, "read_ends", lambda *args: calls.append(args) or args[2].tolist())
    for form in {"reference", "cpp"} & {*ops.usable(case.op)}:
        calls.clear()
        case.form(form)(**case.inputs, cu_seqlens=torch.tensor([0, 6]))
        assert len(calls) == 1, form


@pytest.mark.parametrize("case", [case for case in PACKED if "state" in case.inputs], ids=titled)
def test_state_of_another_kind_is_named(case):
    with pytest.raises(ValueError, match=r"state is a list, expected a tensor \["):
        case.form("auto")(**case.inputs | {"state": [0.0]})


@pytest.mark.parametrize("case", PACKED, ids=titled)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int64])
def test_gates_must_be_floating_point(case, dtype):
    for name in ("log_alpha", "beta", "a", "b", "A_log", "dt_bias", "dt", "A"):
        if case.inputs.get(name) is not None:
            wrong = case.inputs | {name: torch.zeros_like(case.inputs[name], dtype=dtype)}
            with pytest.raises(ValueError, match=f"{name} is torch.*expected float32"):
                case.form("auto")(**wrong)


def refuses_everything_wrong(op, inputs):
    """Whatever argument of an op is of a wrong kind, it is refused by its name."""
    op(**inputs)  # so that something is prepared that wrong arguments could be taken for
    for name in signature(op).parameters:
        for wrong in WRONG:
            with pytest.raises(ValueError, match=rf"^\w+: (cache.)?{name} is .*, expected"):
                op(**inputs | {name: wrong})


@pytest.mark.parametrize("case", every_op(L=6), ids=titled)
def test_an_argument_of_another_kind_is_named(case):
    refuses_everything_wrong(getattr(ops, case.op), case.inputs | case.options)


@pytest.mark.parametrize("step", STEPS)
def test_an_argument_of_another_kind_is_named_by_a_step(step):
    case, inputs = one_token(step)
    memory = {"cache": ops.attention(**case.inputs)[1]} if case.op == "attention" else {"state": case.inputs["state"]}
    refuses_everything_wrong(getattr(ops, step), inputs | memory)


@pytest.mark.parametrize(
    ("op", "name", "wrong"),
    [
        ("attention", "window", [True, 0, -1, 1.5, 2**63]),
        ("attention", "keep_cache", [None, 1, 0.0]),
        ("gated_delta_mix", "beta_max", [True, 0, -1.0, 2.001, float("inf"), None, torch.tensor(1.0)]),
        ("gated_rms_norm", "eps", [True, False, -1e-9, float("inf"), None, torch.tensor(1e-5)]),
        ("linear_cross_entropy", "ignore_index", [True, 1.5, 10**30, -(2**63) - 1, None, torch.tensor(-100)]),
    ],
)
def test_an_option_out_of_its_bounds_is_named(op, name, wrong):
    case = next(case for case in every_op(L=6) if case.op == op)
    for right in (1, 1.0):  # both equal True
        if name in ("beta_max", "eps"):
            case.form("auto")(**case.inputs | {name: right})
    for value in wrong:
        with pytest.raises(ValueError, match=rf"{op}: {name} is .*, expected (a number|a whole number|True or False)"):
            case.form("auto")(**case.inputs | {name: value})


def test_a_cache_that_holds_no_tensors_is_refused():
    case = next(case for case in every_op(L=3) if case.op == "attention")
    cache = ops.attention(**case.inputs)[1]
    assert cache is not None
    for name in ops.KVCache._fields:
        with pytest.raises(ValueError, match=rf"cache.{name} is a NoneType, expected a tensor"):
            ops.attention(**case.inputs, cache=cache._replace(**{name: None}))


def one_token(step):
    """The case of a step's op, and the inputs of the step but its state."""
    case = next(case for case in every_op(L=1) if step == f"{case.op}_step_")
    inputs = {n: case.inputs.get(n) for n in STEPS[step]}
    return case, {n: x if x is None or n in PARAMETERS else x[:, 0] for n, x in inputs.items()}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_without_a_state_is_refused(step):
    _, inputs = one_token(step)
    with pytest.raises(ValueError, match="is None, expected"):
        getattr(ops, step)(*inputs.values(), None)


@pytest.mark.parametrize("case", [case for case in every_op(L=6) if "state" in case.inputs], ids=titled)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)]
)
@pytest.mark.parametrize("strides", ["contiguous", "transposed"])
def test_steps_in_place_are_the_recurrence(case, dtype, tolerance, strides):
    inputs = cast(case.inputs, dtype) if dtype == torch.float64 else round_operands(case.inputs, dtype)
    expected, last_state = case.form("reference")(**inputs)
    state = inputs["state"].clone() if strides == "contiguous" else inputs["state"].mT.contiguous().mT
    step_, given = getattr(ops, f"{case.op}_step_"), [(n, inputs.get(n)) for n in STEPS[f"{case.op}_step_"]]
    outputs = []
    for t in range(6):
        version = state._version
        outputs.append(step_(*(x if x is None or n in PARAMETERS else x[:, t] for n, x in given), state))
        assert state._version > version  # autograd can tell
    assert relative_error(torch.stack(outputs, 1), expected) < tolerance
    assert relative_error(state, last_state) < tolerance


def test_many_short_sequences_and_a_long_one_need_little_memory():
    lengths = torch.cat([torch.ones(20_000, dtype=torch.int64), torch.tensor([400_000])])
    layout = lay_out(lengths, 16, torch.device("cpu"))  # a [20,001, 25,000] table would be 4 GiB
    assert layout.active[:2] == [20_001, 1]
    assert sum(layout.active) == 20_000 + 25_000
