"""Models that transformers has itself, such as Qwen3.5, run by our ops. Needs transformers, and nothing else."""

from .acceleration import accelerate_transformers, in_force
from .registry import kernel_mapping

__all__ = ["accelerate_transformers", "in_force", "kernel_mapping"]
