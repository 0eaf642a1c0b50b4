"""Tokens on disk: shards, each a safetensors file of arrays with a hash of them, the tokenizer, and a manifest that is
written last."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from safetensors.numpy import save_file

from gated_deltanet import files

from .chat import Content
from .corpus import Corpus, Encoded, corpus_of

REPAIR = "delete manifest.json and run the same gdn data prepare again, which mends it"
HEADER = "gated-deltanet"
MANIFEST, VERSION = "manifest.json", 1
DTYPES = {"U16": np.uint16, "U32": np.uint32, "BOOL": np.bool_}
TYPES = {"tokens": ("U16", "U32"), "positions": ("I64",), "n_bytes": ("I64",), "valid": ("BOOL",)}
LEARNT = "learnt"  # the array that only shards with conversations have


class Header(NamedTuple):
    sha256: str
    """Of the arrays."""
    text_sha256: str
    """Of the texts they were made from."""


def write(file: Path, encoded: Encoded, text_sha256: str) -> Header:
    header = Header(hash_of(encoded), text_sha256)
    # one entry, as safetensors writes several in any order, and the same texts must give the same file
    metadata = {HEADER: json.dumps(header._asdict())}
    files.write(file, lambda unfinished: save_file(arrays_of(encoded), unfinished, metadata))
    return header


def arrays_of(encoded: Encoded) -> dict[str, np.ndarray]:
    return {name: array for name, array in encoded._asdict().items() if array is not None}


def hash_of(encoded: Encoded) -> str:
    found = sha256()
    for array in arrays_of(encoded).values():
        found.update(f"{array.dtype} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def hash_of_contents(contents: Sequence[Content]) -> str:
    found = sha256()
    for content in contents:
        update(found, content)
    return found.hexdigest()


def update(found: Any, content: Content) -> None:
    """A hash goes on with one more document. The length of a text keeps it apart from the next."""
    if not isinstance(content, str):
        found.update(f"{len(content)} turns ".encode())
        for turn in content:
            found.update(f"{turn.learnt:d}{turn.marked:d} ".encode())
            update(found, turn.text)
        return
    text = content.encode()
    found.update(f"{len(text)} ".encode())
    found.update(text)


def read(file: Path) -> tuple[Encoded, Header]:
    """All arrays, checked against the hash."""
    with mending(file), files.open_tensors(file, "np") as shard:
        header = header_of((shard.metadata() or {}).get(HEADER))
        check_arrays(shard)
        encoded = Encoded(**{name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118
    if hash_of(encoded) != header.sha256:
        raise damaged(file, "its hash is wrong")
    return encoded, header


def read_index(file: Path) -> Encoded:
    """Without what is there for each token: of that there is none."""
    with mending(file), files.open_tensors(file, "np") as shard:
        n_tokens = check_arrays(shard)
        index = {name: shard.get_tensor(name) for name in ("positions", "n_bytes", "valid")}
        check_positions(index["positions"], n_tokens)
        learnt = np.empty(0, bool) if LEARNT in shard.keys() else None  # noqa: SIM118
    return Encoded(tokens=np.empty(0, np.uint16), **index, learnt=learnt)


def header_of(text: str | None) -> Header:
    if text is None:
        raise ValueError("it has no header")
    values = files.shaped(files.parse_json(text, "its header"), dict[str, str])
    if values.keys() != {*Header._fields}:
        raise ValueError(f"its header holds {', '.join(values)}, expected {', '.join(Header._fields)}")
    return Header(**values)


def check_arrays(shard: Any) -> int:
    """That a shard has all arrays of `Encoded`, of their types, and as many documents in each. The number of tokens."""
    if {*shard.keys()} - {LEARNT} != {*TYPES}:
        raise ValueError(f"it holds {', '.join(shard.keys())}, expected {', '.join(TYPES)}")
    found = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
    for name, kinds in TYPES.items():
        if found[name].get_dtype() not in kinds or len(found[name].get_shape()) != 1:
            raise ValueError(f"{name} is {found[name].get_dtype()} {found[name].get_shape()}, expected {kinds[0]} [n]")
    (n_tokens,), *documents = (found[name].get_shape() for name in TYPES)
    if LEARNT in found and (found[LEARNT].get_dtype(), found[LEARNT].get_shape()) != ("BOOL", [n_tokens]):
        of = f"{found[LEARNT].get_dtype()} {found[LEARNT].get_shape()}"
        raise ValueError(f"{LEARNT} is {of}, expected BOOL [{n_tokens}], as there are tokens")
    if len({n for (n,) in documents}) != 1:
        raise ValueError(f"positions, n_bytes and valid are of {documents} documents, expected as many in each")
    return n_tokens


def check_positions(positions: np.ndarray, n_tokens: int) -> None:
    """That the documents are where the tokens are, with an end of text before the first."""
    if positions.min(initial=1) < 1 or positions.max(initial=1) > n_tokens or positions.sum() + 1 != n_tokens:
        raise ValueError(f"its documents are not of the {n_tokens} tokens that are there")


def map_array(file: Path, name: str) -> np.ndarray | None:
    """An array, in memory only where it is looked at; None: the shard has none of this name."""
    with file.open("rb") as shard:
        size = int.from_bytes(shard.read(8), "little")
        array = files.parse_json(shard.read(size), str(file)).get(name)
    if array is None:
        return None
    first, _ = array["data_offsets"]
    return np.memmap(file, DTYPES[array["dtype"]], "r", offset=8 + size + first, shape=tuple(array["shape"]))


def map_tokens(file: Path) -> np.ndarray:
    tokens = map_array(file, "tokens")
    assert tokens is not None  # `read_index` has looked
    return tokens


@contextmanager
def mending(file: Path) -> Iterator[None]:
    """What is wrong with a shard is told with what to do."""
    try:
        yield
    except ValueError as error:
        raise damaged(file, str(error)) from error


def damaged(file: Path, why: str) -> ValueError:
    return ValueError(f"{file} is damaged: {why}; {REPAIR}")


class Shard(TypedDict):
    file: str
    size: int
    sha256: str


class Vocabulary(TypedDict):
    vocab_size: int
    end_of_text: int
    fingerprint: str


class Counts(TypedDict):
    documents: int
    tokens: int
    bytes: int


class Source(TypedDict):
    sha256: str


class Manifest(TypedDict):
    """What is read of it; it holds more."""

    tokenizer: Vocabulary
    train: Counts
    valid: Counts
    sources: dict[str, Source]
    skipped: dict[str, int]
    skipped_examples: list[str]
    shards: list[Shard]


def open_corpus(folder: str | Path, split: str = "train", *, verify: bool = False) -> Corpus:
    """The documents of a split, "train", "valid" or "all", of a folder that `gdn data prepare` has written.

    The sizes of all shards are checked; with verify=True also their hashes, for which all is read.
    """
    manifest = read_manifest(folder)
    paths = [Path(folder) / shard["file"] for shard in manifest["shards"]]
    for path, shard in zip(paths, manifest["shards"], strict=True):
        check_shard(path, shard, verify)
    told = manifest["tokenizer"]
    index = [read_index(path) for path in paths]
    some_learnt = any(each.learnt is not None for each in index)
    return corpus_of(
        index,
        split,
        lru_cache(128)(lambda i: map_tokens(paths[i])),  # each keeps its file open, which is limited
        lru_cache(128)(lambda i: map_array(paths[i], LEARNT)) if some_learnt else None,
        vocab_size=told["vocab_size"],
        end_of_text=told["end_of_text"],
        fingerprint=told["fingerprint"],
    )


def read_manifest(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / MANIFEST
    if not file.exists():
        raise FileNotFoundError(f"no {MANIFEST} in {folder}, expected a folder that gdn data prepare has finished")
    manifest = files.read_json(file)
    found = manifest.get("version")
    if found != VERSION:
        raise ValueError(f"{file} is of version {found!r:.60}, expected {VERSION}: prepare the corpus again")
    with files.naming(file):
        check_manifest(files.shaped(manifest, Manifest))
    return manifest


def check_manifest(manifest: Manifest) -> None:
    told = manifest["tokenizer"]
    if not 0 <= told["end_of_text"] < told["vocab_size"] <= 2**32:
        found = f"end_of_text is {told['end_of_text']} and vocab_size {told['vocab_size']}"
        raise ValueError(f"{found}, expected at most 2**32 tokens, one of them the end of text")
    for shard in manifest["shards"]:
        if not re.fullmatch(r"\d+\.safetensors", shard["file"]):
            raise ValueError(f"a shard is named {shard['file'][:60]!r}, expected a name such as 00000.safetensors")


def check_shard(file: Path, told: dict[str, Any], verify: bool) -> None:
    """Of a shard, that it is what the manifest tells."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing, {REPAIR}")
    if (size := file.stat().st_size) != told["size"]:
        raise ValueError(f"{file} has {size} bytes, expected {told['size']}: {REPAIR}")
    if verify and read(file)[1].sha256 != told["sha256"]:
        raise ValueError(f"{file} is not the shard that {MANIFEST} tells of, its hash is another: {REPAIR}")
