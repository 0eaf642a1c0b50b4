"""Gated DeltaNet: the gated delta rule, its chunkwise training algorithm, and the models built on it.

    from gated_deltanet import CausalLM, get_preset
    model = CausalLM(get_preset("gdn-tiny"))

These names are imported when first used, so that `import gated_deltanet` and `gdn --help` do not wait for torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gated_deltanet.interop.folder import load, save
    from gated_deltanet.interop.transformers import accelerate_transformers
    from gated_deltanet.models import CausalLM, ModelConfig, Sampling, Session, generate, get_preset, stream

__all__ = [
    "CausalLM",
    "ModelConfig",
    "Sampling",
    "Session",
    "accelerate_transformers",
    "generate",
    "get_preset",
    "load",
    "save",
    "stream",
]
ELSEWHERE = {  # all others are in gated_deltanet.models
    "accelerate_transformers": "gated_deltanet.interop.transformers",
    "load": "gated_deltanet.interop.folder",
    "save": "gated_deltanet.interop.folder",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("gated-deltanet")
    if name in __all__:
        return getattr(import_module(ELSEWHERE.get(name, "gated_deltanet.models")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
