"""FLA's own chunk_gated_delta_rule by our op for tensors on a CPU, through the registry of backends of FLA 0.6."""

from types import ModuleType
from typing import Any

from torch import Tensor

from gated_deltanet.interop import fla

from .functions import taken

DOOR = "fla.ops.gated_delta_rule.backends"  # the module whose import makes the registry
NAME = "gated_deltanet"


def register(backends: ModuleType) -> None:
    """backends: fla.backends. It stays registered, and takes calls while `accelerate_transformers` is in force."""
    if not hasattr(backends, "register") or not hasattr(backends, "BaseBackend"):
        return  # an older FLA

    @backends.register("gated_delta_rule")
    class OnCpu(backends.BaseBackend):
        backend_type, priority = NAME, -1

        def chunk_gated_delta_rule(self, *args: Any, **kwargs: Any) -> Any:
            return fla.chunk_gated_delta_rule(*args, **kwargs)

        def chunk_gated_delta_rule_verifier(self, q: Tensor, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
            return taken(q), "its tensors are not on a CPU, or it is not in force"
