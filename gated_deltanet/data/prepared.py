"""A prepared corpus: a folder of shards, the tokenizer, and a manifest that is written last."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import shards
from .corpus import Corpus, corpus_of

MANIFEST, VERSION = "manifest.json", 1


def open_corpus(folder: str | Path, split: str = "train", *, verify: bool = False) -> Corpus:
    """The documents of a split, "train", "valid" or "all", of a folder that `gdn data prepare` has written.

    The sizes of all shards are checked; with verify=True also their hashes, for which all is read.
    """
    manifest = read_manifest(folder)
    files = [Path(folder) / shard["file"] for shard in manifest["shards"]]
    for file, shard in zip(files, manifest["shards"], strict=True):
        check(file, shard, verify)
    told = manifest["tokenizer"]
    return corpus_of(
        [shards.read_index(file) for file in files],
        split,
        lru_cache(128)(lambda i: shards.map_tokens(files[i])),  # each keeps its file open, which is limited
        vocab_size=told["vocab_size"],
        end_of_text=told["end_of_text"],
        fingerprint=told["fingerprint"],
    )


def read_manifest(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / MANIFEST
    if not file.exists():
        raise FileNotFoundError(f"no {MANIFEST} in {folder}, expected a folder that gdn data prepare has finished")
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    found = manifest.get("version") if isinstance(manifest, dict) else None
    if found != VERSION:
        raise ValueError(f"{file} is of version {found}, expected {VERSION}: prepare the corpus again")
    return manifest


def check(file: Path, told: dict[str, Any], verify: bool) -> None:
    """Of a shard, that it is what the manifest tells."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing, {shards.REPAIR}")
    if (size := file.stat().st_size) != told["size"]:
        raise ValueError(f"{file} has {size} bytes, expected {told['size']}: {shards.REPAIR}")
    if verify and shards.read(file)[1].sha256 != told["sha256"]:
        raise ValueError(f"{file} is not the shard that {MANIFEST} tells of, its hash is another: {shards.REPAIR}")
