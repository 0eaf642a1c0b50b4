"""Safetensors files: whole, or an error that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


@contextmanager
def open_tensors(file: Path, framework: str) -> Iterator[Any]:
    """What `safe_open` gives. framework: "pt" or "np"."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}, expected one of safetensors")
    try:
        with safe_open(file, framework=framework) as opened:  # pyright: ignore[reportArgumentType]
            yield opened
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error


def read_tensors(file: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata and torch's tensors, in memory that torch allocated.

    They lie anywhere in the file, and matrix products may round otherwise where a row begins elsewhere in a cache line.
    """
    with open_tensors(file, "pt") as opened:
        return opened.metadata() or {}, {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
