"""A shard on disk: a safetensors file of its arrays, with a hash of them, written whole or not at all."""

import errno
import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .encoded import Encoded

REPAIR = "delete manifest.json and run the same gdn data prepare again, which mends it"
HEADER = "gated-deltanet"
DTYPES = {"U16": np.uint16, "U32": np.uint32}


class Header(NamedTuple):
    sha256: str
    """Of the arrays."""
    text_sha256: str
    """Of the texts they were made from."""


def write(file: Path, encoded: Encoded, text_sha256: str) -> Header:
    header = Header(hash_of(encoded), text_sha256)
    # one entry, as safetensors writes several in any order, and the same texts must give the same file
    write_whole(file, save(encoded._asdict(), metadata={HEADER: json.dumps(header._asdict())}))
    return header


def hash_of(encoded: Encoded) -> str:
    found = sha256()
    for array in encoded:
        found.update(f"{array.dtype} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def hash_of_texts(texts: Sequence[str]) -> str:
    found = sha256()
    for text in texts:
        update(found, text)
    return found.hexdigest()


def update(found, text: str) -> None:
    """A hash goes on with one more text, whose length keeps it apart from the next."""
    content = text.encode()
    found.update(f"{len(content)} ".encode())
    found.update(content)


def write_whole(file: Path, content: bytes) -> None:
    """Under another name first, and on the disk before it gets its own."""
    unfinished = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        with unfinished.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        advice = "what is finished is kept: make room, and run the same command again"
        raise OSError(f"the disk is full, {file} was not written; {advice}") from error


def read(file: Path) -> tuple[Encoded, Header]:
    """All arrays, checked against the hash."""
    try:
        with safe_open(file, framework="np") as shard:
            header = Header(**json.loads((shard.metadata() or {})[HEADER]))
            encoded = Encoded(**{name: shard.get_tensor(name) for name in Encoded._fields})
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise damaged(file, str(error)) from error
    if hash_of(encoded) != header.sha256:
        raise damaged(file, "its hash is wrong")
    return encoded, header


def read_index(file: Path) -> Encoded:
    """Without the tokens: of them there are none."""
    try:
        with safe_open(file, framework="np") as shard:
            index = {name: shard.get_tensor(name) for name in Encoded._fields if name != "tokens"}
    except SafetensorError as error:
        raise damaged(file, str(error)) from error
    return Encoded(tokens=np.empty(0, np.uint16), **index)


def map_tokens(file: Path) -> np.ndarray:
    """The tokens, in memory only where they are looked at."""
    with file.open("rb") as shard:
        size = int.from_bytes(shard.read(8), "little")
        tokens = json.loads(shard.read(size))["tokens"]
    first, _ = tokens["data_offsets"]
    return np.memmap(file, DTYPES[tokens["dtype"]], "r", offset=8 + size + first, shape=tuple(tokens["shape"]))


def damaged(file: Path, why: str) -> ValueError:
    return ValueError(f"{file} is damaged: {why}; {REPAIR}")
