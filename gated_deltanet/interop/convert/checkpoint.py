"""Folders of safetensors, in one file or in shards, read and written one tensor at a time.

A folder is there whole or not at all: it is written under another name, which it loses at the end.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gated_deltanet import files

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BESIDE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
ALIGNED = 8  # bytes


class Source(NamedTuple):
    """A tensor in a file."""

    file: Path
    name: str  # there
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: F32, BF16


class Piece(NamedTuple):
    """A tensor to write: what `make` makes of the tensors it is given, in the order of `sources`."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    make: Callable[..., Tensor]
    wide: bool = False  # in float32 at least, whatever its sources are of


def read_sources(folder: Path) -> dict[str, Source]:
    """What the weights of a folder are, without reading them."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}, expected a checkpoint")
    index, found = folder / INDEX, {}
    named = read_index(index) if index.exists() else {}
    for file in sorted({folder / name for name in named.values()}) or [folder / WEIGHTS]:
        if file.parent != folder:
            raise ValueError(f"{index} names {file}, expected a file in its own folder")
        with files.open_tensors(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                found[name] = Source(file, name, tuple(part.get_shape()), part.get_dtype())
    if missing := sorted(named.keys() - found.keys()):
        raise ValueError(f"{index} names {listed(missing)}, which the files do not hold")
    if others := sorted(name for name, source in found.items() if source.dtype not in DTYPES):
        kinds = ", ".join(f"{name} is {found[name].dtype}" for name in others[:3])
        raise ValueError(f"{folder}: {kinds}, expected {', '.join(DTYPES)}")
    return found


def read_index(file: Path) -> dict[str, str]:
    """Which file holds a tensor, by its name."""
    with files.naming(file):
        return files.shaped(files.read_json(file, strict=False).get("weight_map"), dict[str, str], "weight_map")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Where to write what becomes `folder`, if nothing goes wrong; else nothing is left."""
    if folder.exists():
        raise FileExistsError(f"{folder} exists, expected a name that is free")
    unfinished = folder.with_name(f".{os.getpid()}.{folder.name}")
    try:
        with files.told(folder):
            unfinished.mkdir(parents=True)
        yield unfinished
        files.sync(unfinished)
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_weights(
    folder: Path, pieces: Sequence[Piece], sources: Mapping[str, Source], shard_bytes: int | None = None
) -> None:
    """shard_bytes: the most a file holds, one tensor at least; None: everything in one file."""
    shards = split(pieces, sources, shard_bytes)
    names = [WEIGHTS] if len(shards) == 1 else [shard_name(i, len(shards)) for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        files.write(folder / name, lambda file, shard=shard: write_tensors(file, shard, sources))
    if len(shards) > 1:
        total = sum(size_of(piece, sources) for piece in pieces)
        where = {piece.name: name for name, shard in zip(names, shards, strict=True) for piece in shard}
        files.write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def write_tensors(file: Path, pieces: Sequence[Piece], sources: Mapping[str, Source]) -> None:
    """One safetensors file: the length of a header, the header, the tensors. Memory holds one of them at a time."""
    pieces = sorted(pieces, key=lambda piece: -width_of(piece, sources))  # so that each is aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for piece in pieces:
        start, end = end, end + size_of(piece, sources)
        header[piece.name] = {
            "dtype": dtype_of(piece, sources),
            "shape": list(piece.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    with file.open("wb") as stream, ExitStack() as stack:
        stream.write(len(text).to_bytes(8, "little") + text)
        opened: dict[Path, Any] = {}
        for piece in pieces:
            stream.write(content(piece, sources, opened, stack))


def made(piece: Piece, sources: Mapping[str, Source], opened: dict[Path, Any], stack: ExitStack) -> Tensor:
    """opened: the files that are; `stack` closes them."""
    tensors = []
    for name in piece.sources:
        file = sources[name].file
        if file not in opened:
            opened[file] = stack.enter_context(files.open_tensors(file, "pt"))
        tensors.append(opened[file].get_tensor(sources[name].name))
    tensor = piece.make(*tensors)
    if tuple(tensor.shape) != piece.shape:
        raise ValueError(f"{piece.name} became {list(tensor.shape)}, expected {list(piece.shape)}")
    return tensor


def content(piece: Piece, sources: Mapping[str, Source], opened: dict[Path, Any], stack: ExitStack) -> memoryview:
    tensor = made(piece, sources, opened, stack).to(DTYPES[dtype_of(piece, sources)]).contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def split(pieces: Sequence[Piece], sources: Mapping[str, Source], shard_bytes: int | None) -> list[list[Piece]]:
    """In order, as many in a shard as it may hold."""
    shards, held = [[]], 0
    for piece in pieces:
        size = size_of(piece, sources)
        if shard_bytes is not None and shards[-1] and held + size > shard_bytes:
            shards, held = [*shards, []], 0
        shards[-1].append(piece)
        held += size
    return shards


def copy_beside(source: Path, folder: Path) -> None:
    """The tokenizer's files, as they are."""
    for name in BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def dtype_of(piece: Piece, sources: Mapping[str, Source]) -> str:
    """That of its sources, which must have one."""
    kinds = {sources[name].dtype for name in piece.sources} or {"F32"}
    if len(kinds) > 1:
        raise ValueError(f"{listed(piece.sources)} are of {', '.join(sorted(kinds))}, expected one type")
    kind = kinds.pop()
    return "F32" if piece.wide and kind != "F64" else kind


def width_of(piece: Piece, sources: Mapping[str, Source]) -> int:
    return DTYPES[dtype_of(piece, sources)].itemsize


def size_of(piece: Piece, sources: Mapping[str, Source]) -> int:
    return prod(piece.shape) * width_of(piece, sources)


def shard_name(i: int, n: int) -> str:
    return f"model-{i + 1:05}-of-{n:05}.safetensors"


def listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
