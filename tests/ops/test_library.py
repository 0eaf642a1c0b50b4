"""A form is called without its operator only where nobody could tell; whoever looks on sees the operator."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import flatten
from gated_deltanet.bench.cases import every_op
from gated_deltanet.ops.library import unwatched

CASES = {
    f"{case.title} {form}": (case, form)
    for case in every_op(L=5)
    for form in ops.usable(case.op)
    if form != "sdpa"  # torch's own operator, where no blocks are needed
}
QKV = every_op(L=5)[0]


class Seen(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func.namespace)
        return func(*args, **kwargs or {})


class Labelled(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.parametrize(("case", "form"), CASES.values(), ids=CASES)
def test_a_direct_call_has_the_bits_of_the_operator(case, form):
    with Seen() as seen:
        expected = flatten(case.form(form)(**case.inputs))
    assert "gdn" in seen.operators
    for got, x in zip(flatten(case.form(form)(**case.inputs)), expected, strict=True):
        assert torch.equal(got, x)
        assert got.is_contiguous()


@pytest.mark.parametrize(("case", "form"), CASES.values(), ids=CASES)
def test_fake_tensors_have_the_results_shapes(case, form):
    expected = flatten(case.form(form)(**case.inputs))
    with FakeTensorMode() as mode:
        inputs = {n: x if x is None else mode.from_tensor(x) for n, x in case.inputs.items()}
        results = flatten(case.form(form)(**inputs))
    assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in expected]


@pytest.mark.parametrize("form", ops.usable("gated_delta_rule"))
def test_results_share_no_memory_with_inputs(form):
    inputs = {n: x if n == "state" else x[:, :0] for n, x in QKV.inputs.items()}
    _, state = ops.gated_delta_rule(**inputs, backend=form)
    assert state.data_ptr() != inputs["state"].data_ptr()
    assert torch.equal(state, inputs["state"])


def test_plain_tensors_are_unwatched_whether_gradients_are_on_or_not():
    x = torch.randn(3)
    assert unwatched(x, None, "silu", 2)
    with torch.no_grad():
        assert unwatched(Parameter(x), x.clone().requires_grad_())
    with torch.inference_mode():
        assert unwatched(x, torch.randn(3))


@pytest.mark.parametrize(
    "x",
    [
        Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True),
        torch.ones(3).as_subclass(Labelled),
        torch.ones(3, device="meta"),
        torch.ones(3, dtype=torch.complex64).conj().imag,
    ],
    ids=["parameter", "requires grad", "subclass", "meta", "lazily negated"],
)
def test_tensors_that_need_the_operator(x):
    assert not unwatched(torch.ones(3), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_every_onlooker_is_noticed():
    found = {}

    def look(name):
        def noticed(x):
            found[name] = not unwatched(x)
            return x

        return noticed

    x = torch.ones(3)
    torch.func.vmap(look("vmap"))(x)
    torch.func.vjp(look("vjp"), x)
    torch.jit.trace(look("trace"), x, check_trace=False)
    with torch.device("cpu"):
        look("function mode")(x)
    with Seen():
        look("dispatch mode")(x)
    assert found == dict.fromkeys(("vmap", "vjp", "trace", "function mode", "dispatch mode"), True)


def test_a_lazily_negated_view_is_read_as_it_is():
    up = torch.complex(torch.zeros(2, 3), torch.ones(2, 3)).conj().imag
    assert up.is_neg()
    assert torch.equal(ops.swiglu(torch.ones(2, 3), up), ops.swiglu(torch.ones(2, 3), up.resolve_neg()))


def test_another_default_device_does_not_reach_inside():
    expected = ops.gated_delta_rule(**QKV.inputs)
    with torch.device("meta"):
        got = ops.gated_delta_rule(**QKV.inputs)
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)


def test_exported_programs_hold_the_operator():
    class Gate(torch.nn.Module):
        def forward(self, x):
            return ops.swiglu(x, x)

    program = torch.export.export(Gate(), (torch.ones(2, 3),))
    assert "gdn.swiglu" in str(program.graph)
