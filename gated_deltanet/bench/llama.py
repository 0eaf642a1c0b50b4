"""llama.cpp beside transformers' models: the same weights in a GGUF file, read and continued by the real one."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from gated_deltanet.interop.convert import from_transformers

KINDS = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}  # of the file's matrices


def installed() -> bool:
    return all(map(find_spec, ("llama_cpp", "gguf")))


def load(model: Any, dtype: str, context: int) -> Any:
    """transformers' Qwen3.5 in llama.cpp, with torch's threads. None if the one installed does not know the model.

    context: the tokens it has room for.
    """
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    from gated_deltanet.interop.convert.gguf import to_gguf

    with TemporaryDirectory() as folder:
        theirs, ours, file = (Path(folder) / name for name in ("theirs", "ours", "model.gguf"))
        model.save_pretrained(theirs)
        from_transformers(theirs, ours)
        to_gguf(ours, file, kind=KINDS[dtype])
        threads = torch.get_num_threads()
        options = {"n_ctx": context, "n_threads": threads, "n_threads_batch": threads, "use_mmap": False}
        try:
            return Llama(str(file), **options, verbose=False)
        except ValueError:  # "Failed to load model from file"
            return None


def prefill(llama: Any, tokens: Sequence[int]) -> float:
    """Seconds."""
    llama.reset()
    start = perf_counter()
    llama.eval(tokens)
    return perf_counter() - start


def decode(llama: Any, tokens: Sequence[int], steps: int) -> float:
    """Of so many tokens, after the others are read."""
    llama.reset()
    llama.eval(tokens)
    start = perf_counter()
    for token in tokens[:steps]:
        llama.eval([token])
    return perf_counter() - start
