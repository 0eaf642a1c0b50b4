"""The paper's update rules as pure functions on tensors. Each op is a folder: the reference, then faster forms."""

from importlib import import_module

import torch

from . import checks
from .attention import KVCache, attention, attention_step_
from .gated_delta_mix import gated_delta_mix, gated_delta_mix_step_
from .gated_delta_rule import gated_delta_rule, gated_delta_rule_step_
from .gated_rms_norm import gated_rms_norm
from .linear import PackedWeight, embedding_rows, linear, pack
from .linear_attention import linear_attention, linear_attention_step_
from .linear_cross_entropy import linear_cross_entropy
from .selective_scan import selective_scan, selective_scan_step_
from .short_conv import short_conv, short_conv_step_
from .swiglu import swiglu
from .variants import delta_product, longhorn, signed_beta

OPS = (
    "gated_delta_rule",
    "gated_delta_mix",
    "linear_attention",
    "selective_scan",
    "attention",
    "short_conv",
    "gated_rms_norm",
    "swiglu",
    "linear_cross_entropy",
    "linear",
)

__all__ = [
    "OPS",
    "KVCache",
    "PackedWeight",
    "attention",
    "attention_step_",
    "backends",
    "delta_product",
    "embedding_rows",
    "gated_delta_mix",
    "gated_delta_mix_step_",
    "gated_delta_rule",
    "gated_delta_rule_step_",
    "gated_rms_norm",
    "linear",
    "linear_attention",
    "linear_attention_step_",
    "linear_cross_entropy",
    "longhorn",
    "pack",
    "selective_scan",
    "selective_scan_step_",
    "short_conv",
    "short_conv_step_",
    "signed_beta",
    "swiglu",
    "usable",
]


def backends() -> dict[str, dict[str, str | None]]:
    """Op -> backend -> None if it can be used on this machine, else the reason why not."""
    forms = {op: import_module(f"{__name__}.{op}").BACKENDS for op in OPS}
    return {op: {name: checks.unusable(name) for name in names} for op, names in forms.items()}


def usable(op: str, device: str = "cpu") -> list[str]:
    """The backends of an op that can be used on this machine, for float32 tensors on this device."""
    like = torch.empty(0, device=device)
    return [name for name in backends()[op] if checks.refusal(name, like) is None]
