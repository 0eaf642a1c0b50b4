"""ONNX Runtime's LinearAttention operator (1.31 or newer), a model of one node. Inference in float32 only."""

from typing import Any, NamedTuple

import numpy
import onnxruntime  # pyright: ignore[reportMissingImports]
import torch
from onnx import TensorProto, helper  # pyright: ignore[reportMissingImports]
from torch import Tensor

from .. import cases
from ..cases import Call, Inputs

NAMES = {"q": "query", "k": "key", "v": "value", "log_alpha": "decay", "beta": "beta", "state": "past_state"}
INPUTS, OUTPUTS = ("query", "key", "value", "past_state", "decay", "beta"), ("output", "present_state")


class Bound(NamedTuple):
    """A binding, which holds addresses only, and the tensors that are there."""

    binding: Any
    tensors: tuple[Tensor, ...]


def forward(inputs: Inputs) -> Call:
    session = start(inputs["q"].shape[2])
    bound = bind(session, packed(inputs), {})

    def call() -> Bound:
        session.run_with_iobinding(bound.binding)
        return bound

    return call


def step(inputs: Inputs) -> Call:
    """Two buffers take turns as old and new state, so that nothing is copied or allocated."""
    session, states = start(inputs["q"].shape[2]), [inputs["state"].clone() for _ in range(2)]
    tokens = []
    for n, token in enumerate(cases.each_token(inputs)):  # an even number of them
        feed = packed({**token, "state": states[n % 2]})
        results = {"output": torch.empty_like(feed["value"]), "present_state": states[1 - n % 2]}
        tokens.append(bind(session, feed, results))

    def one(token: Bound, state: Tensor) -> Tensor:
        session.run_with_iobinding(token.binding)
        return state

    return cases.decode(one, tokens, inputs["state"], now=states[0])


def packed(inputs: Inputs) -> dict[str, Tensor]:
    """[B, L, H, d] as [B, L, H d], under the operator's names."""
    flat = {n: x if n == "state" or x.ndim == 3 else x.flatten(2) for n, x in inputs.items()}
    return {NAMES[n]: x.contiguous() for n, x in flat.items()}


def bind(session: Any, feed: dict[str, Tensor], results: dict[str, Tensor]) -> Bound:
    """results: where to put them; without, ONNX Runtime allocates."""
    binding = session.io_binding()
    for name, x in feed.items():
        binding.bind_input(name, "cpu", 0, numpy.float32, tuple(x.shape), x.data_ptr())
    for name in OUTPUTS:
        x = results.get(name)
        place = () if x is None else ("cpu", 0, numpy.float32, tuple(x.shape), x.data_ptr())
        binding.bind_output(name, *place)
    return Bound(binding, (*feed.values(), *results.values()))


def start(heads: int) -> Any:
    """A session with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(model(heads), options, providers=["CPUExecutionProvider"])


def model(heads: int) -> bytes:
    options = {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1.0, "update_rule": "gated_delta"}
    node = helper.make_node("LinearAttention", INPUTS, OUTPUTS, domain="com.microsoft", **options)
    graph = helper.make_graph([node], "rule", list(map(float32, INPUTS)), list(map(float32, OUTPUTS)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def float32(name: str):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (4 if "state" in name else 3))


CALLS = {"forward": forward, "step": step}
DTYPES = ("float32",)

try:
    start(heads=1)
except Exception as error:  # of a type of its own
    raise ImportError("this onnxruntime has no LinearAttention operator") from error
