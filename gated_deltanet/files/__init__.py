"""Every file of ours is read and written here. Nothing here imports another part of the package, nor torch.

What is read is checked: a file that is damaged, or is another's, is a ValueError that names it. What is written is
there whole or not at all.
"""

from .reading import naming, parse_json, read_json, read_lines, read_text, read_toml
from .shape import shaped
from .tensors import open_tensors, read_tensors
from .writing import append, as_json, clear, finite, sync, told, write, write_json, write_text

__all__ = [
    "append",
    "as_json",
    "clear",
    "finite",
    "naming",
    "open_tensors",
    "parse_json",
    "read_json",
    "read_lines",
    "read_tensors",
    "read_text",
    "read_toml",
    "shaped",
    "sync",
    "told",
    "write",
    "write_json",
    "write_text",
]
