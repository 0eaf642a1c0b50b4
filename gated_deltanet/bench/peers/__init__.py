"""Other packages' gated delta rule, to be measured beside ours where they are installed. A file for each.

Its CALLS say what it can do, "forward", "forward+backward" or "step", and make of inputs a call to time; its DTYPES,
in which dtypes.
"""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from gated_deltanet.ops import gpu

NEEDS = {"transformers": ("transformers",), "onnxruntime": ("onnxruntime", "onnx"), "fla": ("fla",)}  # modules it takes
DEVICES = {"transformers": ("cpu", "cuda"), "onnxruntime": ("cpu",), "fla": ("cuda",)}
PACKAGES = {"fla": "flash-linear-attention"}  # whose names are not those of their modules


def installed(device: str = "cpu") -> list[str]:
    """Those that can be measured on this kind of device. What needs a GPU is not imported without one."""
    here = [peer for peer, devices in DEVICES.items() if device in devices]
    return [peer for peer in here if all(map(find_spec, NEEDS[peer])) and works(peer)]


def works(peer: str) -> bool:
    """Whether its package is of a version that has the function, and can be imported."""
    if peer == "fla" and gpu.fla_unusable():
        return False
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
    return {peer: version(PACKAGES[peer] if peer in PACKAGES else NEEDS[peer][0]) for peer in chosen}
