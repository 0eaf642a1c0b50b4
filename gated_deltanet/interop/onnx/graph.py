"""An ONNX graph while it is made: operators, constants, weights, and the state that goes in and comes out.

Values are known by their names. Sequences are [B, L, …], as everywhere here; heads lie side by side, [B, L, H · d].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from gated_deltanet.interop import folder as ours
from gated_deltanet.interop.convert.accounting import Shapes
from gated_deltanet.interop.convert.checkpoint import Piece
from gated_deltanet.models.config import ModelConfig

PAST, PRESENT = "past.", "present."  # of the names of the state


class Dialect(NamedTuple):
    """Which operators there are."""

    opset: int  # of ai.onnx
    domain: str | None  # of LinearAttention and CausalConvWithState; None: neither is there


@dataclass
class Graph:
    """What becomes one. Of a loop over tokens, what one token does."""

    config: ModelConfig
    shapes: Shapes  # of our tensors
    dialect: Dialect
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    weights: dict[str, Piece] = field(default_factory=dict)
    shared: dict[Any, str] = field(default_factory=dict)  # values that several layers read
    number: count = field(default_factory=count)  # of the next value

    def ops(self, kind: str, *inputs: str, n: int, domain: str = "", **attributes: Any) -> list[str]:
        """The n results of an operator. An input that is not given is ""."""
        found = [f"{kind}_{next(self.number)}" for _ in range(n)]
        self.nodes.append(helper.make_node(kind, inputs, found, name=found[0], domain=domain, **attributes))
        return found

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, n=1, **attributes)[0]

    def constant(self, values: Any, dtype: type = np.float32) -> str:
        array = np.asarray(values, dtype)
        key = f"{array.dtype} {array.shape} {array.tobytes().hex()}"
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"constant_{next(self.number)}")
        return self.constants[key].name

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def once(self, key: Any, make: Callable[[], str]) -> str:
        """What `make` made when it was first asked for."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def weight(self, name: str, shape: Sequence[int], make: Callable[[Tensor], Tensor], of: str) -> str:
        """What `make` makes of our tensor `of`."""
        self.weights[name] = Piece(name, tuple(shape), (ours.PREFIX + of,), make)
        return name

    def reshape(self, x: str, *sizes: int) -> str:
        """0 keeps an axis as it is."""
        return self.op("Reshape", x, self.integers(*sizes))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def size(self, x: str, axis: int) -> str:
        """[1]"""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def take(self, x: str, axis: int, first: int, last: int) -> str:
        """A slice of one axis; what lies before its start or behind its end is not there."""
        return self.op("Slice", x, *(self.integers(i) for i in (first, last, axis)))

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, x: str, kind: int, shape: Sequence[int | str]) -> None:
        self.nodes.append(helper.make_node("Identity", [x], [name], name=name))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def scan(self, step: Callable[..., tuple[str, str]], state: str, *inputs: str) -> tuple[str, str]:
        """Token by token: step(graph, state, *inputs of a token) -> (state, output). Inputs: [B, L, …]."""
        body = Graph(self.config, self.shapes, self.dialect, constants=self.constants, number=self.number)
        names = [f"scanned_{next(self.number)}" for _ in (state, *inputs)]
        results = step(body, *names)
        given, made = (
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in xs] for xs in (names, results)
        )
        n = len(inputs)
        attributes = {"num_scan_inputs": n, "scan_input_axes": [1] * n, "scan_output_axes": [1]}
        tokens = helper.make_graph(body.nodes, "token", given, made)
        after, output = self.ops("Scan", state, *inputs, n=2, body=tokens, **attributes)
        return after, output

    def finished(self, name: str, weights: Sequence[TensorProto]) -> GraphProto:
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, [*self.constants.values(), *weights])


class Scope(NamedTuple):
    """A part of the model, such as a layer's mixer."""

    graph: Graph
    prefix: str  # of its tensors' names: "layers.3.mixer."
    layer: int

    def linear(self, name: str, x: str) -> str:
        """A projection, with its bias if there is one."""
        g, weight = self.graph, f"{self.prefix}{name}.weight"
        rows, columns = g.shapes[weight]
        y = g.op("MatMul", x, g.weight(weight, (columns, rows), lambda w: w.mT, weight))
        return g.op("Add", y, self.tensor(f"{name}.bias")) if self.has(f"{name}.bias") else y

    def has(self, name: str) -> bool:
        return self.prefix + name in self.graph.shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.shapes[self.prefix + name]

    def tensor(self, name: str) -> str:
        """As it is."""
        return self.graph.weight(self.prefix + name, self.shape(name), lambda w: w, self.prefix + name)

    def past(self, name: str, *shape: int | str) -> str:
        """What the layer knows of the tokens before: [B, …]. Zeros, or with an axis "past…" nothing, at the start."""
        return self.graph.input(f"{PAST}{self.layer}.{name}", TensorProto.FLOAT, ["batch", *shape])

    def present(self, name: str, x: str, *shape: int | str) -> None:
        """The same after the last token."""
        self.graph.output(f"{PRESENT}{self.layer}.{name}", x, TensorProto.FLOAT, ["batch", *shape])

    def norm(self, name: str, x: str, heads: int = 1, eps: float | None = None) -> str:
        """RMS norm; of each head by itself, all by the same weights. eps: None is the model's."""
        g, eps = self.graph, eps or self.graph.config.norm_eps
        if heads > 1:
            x = g.reshape(x, 0, 0, heads, -1)
        y = g.op("RMSNormalization", x, self.tensor(f"{name}.weight"), axis=-1, epsilon=eps)
        return g.reshape(y, 0, 0, -1) if heads > 1 else y
