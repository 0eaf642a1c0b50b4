"""Other packages' gated delta rule, to be measured beside ours where they are installed. A file for each.

Its CALLS say what it can do, "forward", "forward+backward" or "step", and make of inputs a call to time; its DTYPES,
in which dtypes.
"""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

NEEDS = {"transformers": ("transformers",), "onnxruntime": ("onnxruntime", "onnx")}  # peer: the packages it takes


def installed() -> list[str]:
    return [peer for peer, packages in NEEDS.items() if all(map(find_spec, packages)) and works(peer)]


def works(peer: str) -> bool:
    """Whether its package is of a version that has the function."""
    try:
        load(peer)
    except ImportError:
        return False
    return True


def can(peer: str, what: str, dtype: str) -> bool:
    return what in load(peer).CALLS and dtype in load(peer).DTYPES


def load(peer: str) -> Any:
    return import_module(f"{__name__}.of_{peer}")


def versions(chosen: Iterable[str]) -> dict[str, str]:
    return {peer: version(NEEDS[peer][0]) for peer in chosen}
