"""`gdn convert`: another project's checkpoint as a model of ours, or ours as another's."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from gated_deltanet.models.config import ModelConfig

Target = Literal[
    "ours",
    "transformers",
    "fla",
    "fla-2024-12",
    "nvlabs",
    "gguf-f32",
    "gguf-bf16",
    "gguf-q8_0",
    "onnx",
    "onnx-opset27",
    "onnx-opset23",
]


@dataclass(frozen=True)
class Convert:
    """Write another project's checkpoint as a model of ours, or a model of ours as another's.

    From flash-linear-attention (FLA) and from transformers: Llama, Mistral, Mamba, Mamba2, OLMo-Hybrid, Qwen3.5's text
    model. Every tensor is accounted for before the first is written: what is missing, has another shape or has no place
    is named, and nothing is left behind. Memory holds one tensor at a time. docs/conversion.md lists the models.

    Example: gdn convert checkpoints/qwen models/qwen
    """

    source: Positional[Annotated[Path, arg(metavar="SOURCE")]]
    """A folder with config.json and safetensors, in one file or in shards; or a .pth of the paper's official code."""
    folder: Positional[Annotated[Path, arg(metavar="FOLDER")]]
    """Where to write; there must be nothing yet."""
    to: Target = "ours"
    """What to write: a model of ours; transformers' own, whichever it is; FLA's; FLA's layout of December 2024; a .pth
    of the paper's official code; a file for llama.cpp with matrices of this type (needs the extra gguf); an ONNX model
    for ONNX Runtime, or of standard operators only (needs the extra onnx)."""

    def run(self) -> None:
        from gated_deltanet.interop import convert

        if self.to == "ours":
            config = convert.from_any(self.source, self.folder)
        elif self.to == "transformers":
            config = convert.to_transformers(self.source, self.folder)
        elif self.to == "nvlabs":
            config = convert.to_nvlabs(self.source, self.folder)
        elif self.to.startswith("gguf"):
            config = as_gguf(self.source, self.folder, self.to.removeprefix("gguf-"))
        elif self.to.startswith("onnx"):
            config = as_onnx(self.source, self.folder, self.to.removeprefix("onnx").lstrip("-") or "onnxruntime")
        else:
            layout = self.to.removeprefix("fla").lstrip("-") or "current"
            config = convert.to_fla(self.source, self.folder, layout=layout)
        kinds = ", ".join(dict.fromkeys(type(mixer).__name__ for mixer in config.mixers))
        print(f"{self.folder}: {config.n_layers} layers of {kinds}, {config.d_model} wide")


def as_gguf(source: Path, file: Path, kind: str) -> "ModelConfig":
    need("gguf")
    from gated_deltanet.interop.convert.gguf import to_gguf

    return to_gguf(source, file, kind=kind)


def as_onnx(source: Path, folder: Path, operators: str) -> "ModelConfig":
    need("onnx")
    from gated_deltanet.interop.onnx import to_onnx

    return to_onnx(source, folder, operators=operators)


def need(package: str) -> None:
    """That an optional package is there, whose extra has its name."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"--to {package} needs {package}: pip install 'gated-deltanet[{package}]'")
