"""Every form of every op is one operator to torch.compile: no graph breaks, and the graph does not grow with L."""

import shutil

import pytest
import torch
import torch._dynamo.testing
from budget import outputs_and_grads, relative_error

from gated_deltanet import ops
from gated_deltanet.bench.cases import every_op

CASES = {f"{case.title} {form}": (i, form) for i, case in enumerate(every_op(L=1)) for form in ops.backends()[case.op]}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("index", "form"), CASES.values(), ids=CASES)
def test_compiled_equals_eager_and_its_graph_does_not_grow(index, form):
    sizes = []

    def counting(graph, example_inputs):
        sizes.append(len(graph.graph.nodes))
        return graph

    for L in (3, 40):
        case = every_op(L)[index]
        compiled = torch.compile(case.form(form), fullgraph=True, dynamic=False, backend=counting)
        expected = outputs_and_grads(case.form(form), case.inputs)
        for name, got in outputs_and_grads(compiled, case.inputs).items():
            assert relative_error(got, expected[name]) < 1e-6, name
    assert len(sizes) == 2
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("index", range(len(every_op(L=1))), ids=[case.title for case in every_op(L=1)])
def test_length_may_be_dynamic(index):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(every_op(L=1)[index].form("auto"), fullgraph=True, dynamic=True, backend=counter)
    for L in (70, 5, 33, 81):
        case = every_op(L)[index]
        expected = outputs_and_grads(case.form("auto"), case.inputs)
        for name, got in outputs_and_grads(compiled, case.inputs).items():
            assert relative_error(got, expected[name]) < 1e-6, name
    assert counter.frame_count <= 2  # short_conv is traced apart where a block or the state is longer than the rest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
def test_packed_mix_compiles_with_inductor():
    case = next(case for case in every_op(L=70) if case.op == "gated_delta_mix")
    cu_seqlens = torch.tensor([0, 30, 70])
    inputs = case.inputs | {"state": case.inputs["state"].repeat(2, 1, 1, 1)}

    def loss(**inputs):
        o, S = ops.gated_delta_mix(**inputs, cu_seqlens=cu_seqlens)
        return o.square(), S

    expected = outputs_and_grads(loss, inputs)
    for name, got in outputs_and_grads(torch.compile(loss, fullgraph=True), inputs).items():
        assert relative_error(got, expected[name]) < 1e-5, name
