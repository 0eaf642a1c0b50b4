"""Tiles that `gdn tune` found to be faster on a GPU of this machine: a file, read once. Without it the fixed ones."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch

from .triton_tiles import Tiles, tiles

FILE = Path(expanduser("~"), ".cache", "gated-deltanet", "tiles.json")  # without a home, beside the program


def key(d_k: int, d_v: int, dtype: torch.dtype, architecture: str) -> str:
    """What tiles are chosen for, as a name in the file."""
    return f"{architecture} {str(dtype).removeprefix('torch.')} {d_k}x{d_v}"


@lru_cache
def tuned() -> dict[str, Tiles]:
    """By `key`; empty without the file."""
    if not FILE.exists():
        return {}
    try:
        return {name: checked(entry) for name, entry in json.loads(FILE.read_text())["tiles"].items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{FILE} holds no tiles ({error}): delete it, or make it anew with gdn tune") from error


def checked(entry: dict[str, Any]) -> Tiles:
    found = Tiles(**entry)
    for number in (*found[:5], *found.warps.values(), *found.stages.values()):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{number!r} is no size")
    return found


def tiles_for(d_k: int, d_v: int, dtype: torch.dtype, architecture: str) -> Tiles:
    return tuned().get(key(d_k, d_v, dtype, architecture)) or tiles(d_k, d_v, dtype, architecture)


@contextmanager
def using(name: str, found: Tiles) -> Iterator[None]:
    """Meanwhile these are taken, whatever the file says. name: of `key`."""
    table = tuned()
    before = dict(table)
    table[name] = found
    try:
        yield
    finally:
        table.clear()
        table.update(before)
