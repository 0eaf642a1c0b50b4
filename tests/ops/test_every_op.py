"""What holds for all ops alike: autocast, empty sizes, limits of autograd, wrong arguments."""

import pytest
import torch
from budget import cast, outputs_and_grads, relative_error

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import flatten, round_operands
from gated_deltanet.bench.cases import every_op
from gated_deltanet.ops.chunks import lay_out
from gated_deltanet.ops.gated_delta_rule import BACKENDS

CASES = {f"{case.title} {form}": (case, form) for case in every_op(L=30) for form in ops.backends()[case.op]}
PACKED = [case for case in every_op(L=6) if case.op not in ("gated_rms_norm", "swiglu", "linear_cross_entropy")]
STEPS = {
    "gated_delta_rule_step_": ("q", "k", "v", "log_alpha", "beta"),
    "gated_delta_mix_step_": ("q", "k", "v", "a", "b", "A_log", "dt_bias"),
    "linear_attention_step_": ("q", "k", "v", "log_alpha"),
    "selective_scan_step_": ("x", "dt", "A", "B", "C"),
    "short_conv_step_": ("x", "weight", "bias"),
    "attention_step_": ("q", "k", "v"),
}
PARAMETERS = ("A_log", "dt_bias", "A", "weight", "bias")


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


@pytest.mark.parametrize("step", STEPS)
def test_a_step_without_a_state_is_refused(step):
    case = next(case for case in every_op(L=1) if step == f"{case.op}_step_")
    inputs = {n: case.inputs.get(n) for n in STEPS[step]}
    one_token = [x if x is None or n in PARAMETERS else x[:, 0] for n, x in inputs.items()]
    with pytest.raises(ValueError, match="is None, expected"):
        getattr(ops, step)(*one_token, None)


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
