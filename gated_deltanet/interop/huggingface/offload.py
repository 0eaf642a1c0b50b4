"""Weights that accelerate keeps elsewhere (a `device_map` with "disk"), and brings for a module's own forward only."""

from typing import Any

from torch import nn

from gated_deltanet.layers.decay import Decay
from gated_deltanet.models.model import CausalLM


def keep_what_others_read(model: CausalLM) -> None:
    """Decays, and embedding and head, are read outside of their own forward: they stay where they are needed."""
    for module in (*(x for x in model.modules() if isinstance(x, Decay)), model.embedding, model.head):
        if module is not None and getattr(getattr(module, "_hf_hook", None), "offload", False):
            keep(module)


def keep(module: nn.Module) -> None:
    from accelerate.hooks import remove_hook_from_module
    from accelerate.utils import set_module_tensor_to_device

    hook: Any = module._hf_hook
    weights = {name: hook.weights_map[name] for name, _ in module.named_parameters(recurse=False)}
    remove_hook_from_module(module)
    for name, value in weights.items():
        set_module_tensor_to_device(module, name, hook.execution_device or "cpu", value=value)
