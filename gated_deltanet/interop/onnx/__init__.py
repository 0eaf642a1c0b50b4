"""A model of ours as an ONNX file. Needs onnx: `pip install 'gated-deltanet[onnx]'`.

One graph reads a prompt and decodes: it takes the tokens and what is known of those before, and gives the logits and
what is known after. `graph` makes graphs, `rules` has the recurrences, `mixers` every mixer.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, helper

from gated_deltanet import files
from gated_deltanet.interop.convert.accounting import read_ours
from gated_deltanet.interop.convert.checkpoint import Source, copy_beside, made, new_folder
from gated_deltanet.models.config import ModelConfig
from gated_deltanet.naming import unknown

from .graph import Dialect, Graph, Scope
from .mixers import MIXERS

MODEL, DATA = "model.onnx", "model.onnx.data"
DIALECTS = {
    "onnxruntime": Dialect(23, "com.microsoft"),
    "opset27": Dialect(27, ""),
    "opset23": Dialect(23, None),
}
IR_VERSION = {23: 11, 27: 13}  # the oldest that goes with an opset
ALIGNED = 64  # bytes


def to_onnx(source: str | Path, folder: str | Path, *, operators: str = "onnxruntime") -> ModelConfig:
    """Write the model in the folder `source` in float32, as model.onnx and its weights, with its tokenizer.

    operators: "onnxruntime", for its own kernels of LinearAttention and CausalConvWithState; "opset27", which has them
    in the standard; "opset23", which has neither: rules are loops over tokens.
    """
    if operators not in DIALECTS:
        raise unknown("operators", operators, DIALECTS)
    dialect, newest = DIALECTS[operators], onnx.defs.onnx_opset_version()
    if dialect.opset > newest:
        raise ValueError(f"onnx {onnx.__version__} has opset {newest}, expected {dialect.opset}: pip install -U onnx")
    source, folder = Path(source), Path(folder)
    config, sources, shapes = read_ours(source)
    graph = graph_of(Graph(config, shapes, dialect))
    with new_folder(folder) as unfinished:
        weights = write_weights(unfinished / DATA, graph, sources)
        model = model_of(graph, weights)
        files.write(unfinished / MODEL, lambda file: file.write_bytes(model.SerializeToString()))
        copy_beside(source, unfinished)
    return config


def graph_of(g: Graph) -> Graph:
    """tokens: [batch, length] -> logits: [batch, length, vocab_size]."""
    config = g.config
    tokens = g.input("tokens", TensorProto.INT64, ["batch", "length"])
    top = Scope(g, "", 0)
    embedding = top.tensor("embedding.weight")
    x = g.op("Gather", embedding, tokens)
    for layer in range(config.n_layers):
        x = block(g, layer, x)
    x = top.norm("norm", x)
    if config.tied:
        rows = g.op("Gemm", g.reshape(x, -1, config.d_model), embedding, transB=1)
        shape = g.op("Concat", g.op("Shape", tokens), g.integers(config.vocab_size), axis=0)
        logits = g.op("Reshape", rows, shape)
    else:
        logits = top.linear("head", x)
    g.output("logits", logits, TensorProto.FLOAT, ["batch", "length", config.vocab_size])
    return g


def block(g: Graph, layer: int, x: str) -> str:
    config = g.config
    s, mixer = Scope(g, f"layers.{layer}.", layer), config.mixer(layer)
    post_norm = getattr(mixer, "post_norm", False)

    def mix(x: str) -> str:
        return MIXERS[type(mixer)](Scope(g, f"layers.{layer}.mixer.", layer), mixer, x)

    def mlp(x: str) -> str:
        inner = g.op("Mul", g.silu(s.linear("mlp.gate_proj", x)), s.linear("mlp.up_proj", x))
        return s.linear("mlp.out_proj", inner)

    for name, branch in (("mixer_norm", mix), ("mlp_norm", mlp))[: 2 if config.d_ff else 1]:
        y = s.norm(name, branch(x)) if post_norm else branch(s.norm(name, x))
        x = g.op("Add", x, y)
    return x


def write_weights(file: Path, graph: Graph, sources: Mapping[str, Source]) -> list[TensorProto]:
    """One tensor at a time into the file; what is returned says where each stands there."""
    found = []
    with file.open("wb") as stream, ExitStack() as stack:
        opened: dict[Path, Any] = {}
        for piece in graph.weights.values():
            stream.write(bytes(-stream.tell() % ALIGNED))
            content = made(piece, sources, opened, stack).float().contiguous().numpy().tobytes()
            tensor = TensorProto(name=piece.name, data_type=TensorProto.FLOAT, dims=piece.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in {"location": DATA, "offset": stream.tell(), "length": len(content)}.items():
                tensor.external_data.add(key=key, value=str(value))
            stream.write(content)
            found.append(tensor)
    return found


def model_of(graph: Graph, weights: list[TensorProto]) -> ModelProto:
    opset, domain = graph.dialect
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    options = {"opset_imports": imports, "ir_version": IR_VERSION[opset], "producer_name": "gated-deltanet"}
    return helper.make_model(graph.finished("model", weights), **options)
