"""The paper's update rules as pure functions on tensors. Each op is a folder: the reference, then faster forms."""

from importlib import import_module

from .gated_delta_mix import gated_delta_mix, gated_delta_mix_step_
from .gated_delta_rule import gated_delta_rule, gated_delta_rule_step_
from .variants import delta_product, longhorn, signed_beta

OPS = ("gated_delta_rule", "gated_delta_mix")

__all__ = [
    "OPS",
    "backends",
    "delta_product",
    "gated_delta_mix",
    "gated_delta_mix_step_",
    "gated_delta_rule",
    "gated_delta_rule_step_",
    "longhorn",
    "signed_beta",
]


def backends() -> dict[str, dict[str, str | None]]:
    """Op -> backend -> None if it can be used on this machine, else the reason why not."""
    return {op: dict.fromkeys(import_module(f"{__name__}.{op}").BACKENDS) for op in OPS}
