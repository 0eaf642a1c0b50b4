"""The paper's update rules as pure functions on tensors. Each op is a folder: reference first, then its faster forms."""

from importlib import import_module

from .gated_delta_rule import gated_delta_rule, gated_delta_rule_step_

OPS = ("gated_delta_rule",)

__all__ = ["OPS", "backends", "gated_delta_rule", "gated_delta_rule_step_"]


def backends() -> dict[str, dict[str, str | None]]:
    """Op -> backend -> None if it can be used on this machine, else the reason why not."""
    return {op: dict.fromkeys(import_module(f"{__name__}.{op}").BACKENDS) for op in OPS}
