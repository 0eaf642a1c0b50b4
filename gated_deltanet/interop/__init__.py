"""Our models under other projects' names, which nothing outside this folder knows.

`folder` saves and loads a model as a folder that Hugging Face reads, too; `huggingface` needs transformers.
`fla` has functions with flash-linear-attention's names, `convert` checkpoints of others, `onnx` needs onnx.
"""

from .folder import load, load_config, read_config, save

__all__ = ["load", "load_config", "read_config", "save"]
