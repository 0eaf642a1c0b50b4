"""Functions with the names, arguments, layouts and semantics of flash-linear-attention (FLA) 0.6, on any device.

They run through the ops of this package, so they need neither FLA nor Triton. `arguments` reads what the functions
share; docs/interop-fla.md says what differs from FLA.
"""

from .delta_rule import (
    chunk_delta_rule,
    chunk_gated_delta_rule,
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from .gla import (
    chunk_gla,
    chunk_retention,
    chunk_simple_gla,
    fused_recurrent_gla,
    fused_recurrent_retention,
    fused_recurrent_simple_gla,
)

__all__ = [
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_gla",
    "chunk_retention",
    "chunk_simple_gla",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gla",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
]
