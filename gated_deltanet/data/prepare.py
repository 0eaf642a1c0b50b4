"""Preparing a corpus: documents → tokens → shards, by several processes, from where an earlier run stopped.

One process reads the documents and cuts them into shards, in the same way for any number of workers. A worker makes
one shard at a time, or finds it made, of the same texts and undamaged.
"""

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from . import shards
from .encoded import VALID, Encoded, encode_documents
from .prepared import MANIFEST, VERSION, read_manifest
from .reading import Tally, default_shard_bytes, read_shards, total_bytes
from .sources import describe, names, parts_of
from .tokenizer import as_text, end_of_text, fingerprint, vocab_size
from .workers import in_order

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Settings:
    """All that decides what is written."""

    source: tuple[str, ...]
    tokenizer: str
    """Its fingerprint."""
    field: str
    separator: str | None
    valid: float
    seed: int
    shard_bytes: int
    version: int = VERSION


class Task(NamedTuple):
    file: Path
    texts: list[str]
    tokenizer: str
    """A tokenizer.json."""
    settings: Settings


def prepare(
    source: str | Sequence[str],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    field: str = "text",
    separator: str | None = None,
    valid: float = VALID,
    seed: int = 0,
    shard_bytes: int | None = None,
    workers: int = 1,
    progress: Callable[[int, int | None], None] = lambda at, total: None,
) -> dict[str, Any]:
    """Write the tokens of a source to the folder `out`, and return the manifest.

    An interrupted run is taken up where it stopped; a finished one is left as it is. The files are the same for any
    number of workers. progress: is told how many bytes of how many have been read and made into shards.
    """
    sources = {name: parts_of(name, field, separator) for name in names(source)}
    parts = [part for each in sources.values() for part in each]
    size = default_shard_bytes(parts) if shard_bytes is None else shard_bytes
    settings = Settings(tuple(sources), fingerprint(tokenizer), field, separator, valid, seed, size)
    check(settings, workers)
    out, tally, made = Path(out), Tally(), []
    begin(out, settings, tokenizer)
    if (out / MANIFEST).exists():
        return read_manifest(out)
    positions: list[int] = []  # after each shard

    def tasks():
        for i, (texts, at) in enumerate(read_shards(sources, size, tally)):
            positions.append(at)
            yield Task(out / f"{i:05}.safetensors", texts, tokenizer.to_str(), settings)

    for each in in_order(make, tasks(), workers):
        made.append(each)
        progress(positions[len(made) - 1], total_bytes(parts))
    if not made:
        raise ValueError(f"no documents in {source}; skipped: {describe(tally.skipped) or 'none'}")
    return finish(out, manifest_of(settings, tokenizer, tally, made))


def check(settings: Settings, workers: int) -> None:
    if not 0 <= settings.valid < 1:
        raise ValueError(f"valid is {settings.valid}, expected a share of the documents, at least 0 and less than 1")
    if settings.shard_bytes < 1 or workers < 1:
        raise ValueError(f"shard_bytes {settings.shard_bytes} and workers {workers}, expected 1 or more of each")


def begin(out: Path, settings: Settings, tokenizer: Tokenizer) -> None:
    """An empty folder gets the settings; one that has some must have the same."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / SETTINGS
    if not file.exists():
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise ValueError(f"{out} holds other files, expected an empty folder or one that gdn data prepare began")
        shards.write_whole(file, as_json(asdict(settings)))
    told, now = json.loads(file.read_text()), json.loads(as_json(asdict(settings)))
    for name in now:
        if told.get(name) != now[name]:
            change = f"{out} was begun with {name} {told.get(name)!r}, not {now[name]!r}"
            raise ValueError(f"{change}: choose another folder, or delete this one")
    shards.write_whole(out / "tokenizer.json", tokenizer.to_str(pretty=True).encode())


def make(task: Task) -> dict[str, Any]:
    """A shard, unless it is there, and what the manifest tells of it."""
    text_sha256, settings = shards.hash_of_texts(task.texts), task.settings
    encoded, header = existing(task.file)
    if encoded is None or header is None:
        tokenizer = tokenizer_of(task.tokenizer)
        encoded = encode_documents(task.texts, tokenizer, valid=settings.valid, seed=settings.seed)
        header = shards.write(task.file, encoded, text_sha256)
    elif header.text_sha256 != text_sha256:
        change = f"{task.file} was made from other texts: the source has changed since"
        raise ValueError(f"{change}; choose another folder, or delete this one")
    told = {"file": task.file.name, "size": task.file.stat().st_size, **header._asdict()}
    return {**told, "train": counts(encoded, False), "valid": counts(encoded, True)}


def existing(file: Path) -> tuple[Encoded, shards.Header] | tuple[None, None]:
    """A shard that is there and whole."""
    try:
        return shards.read(file)
    except (FileNotFoundError, ValueError):
        return None, None


@lru_cache(1)
def tokenizer_of(content: str) -> Tokenizer:
    return as_text(Tokenizer.from_str(content))


def counts(encoded: Encoded, valid: bool) -> dict[str, int]:
    """tokens: with the end of text after each document."""
    chosen = encoded.valid == valid
    tokens, n_bytes = encoded.positions[chosen].sum(), encoded.n_bytes[chosen].sum()
    return {"documents": int(chosen.sum()), "tokens": int(tokens), "bytes": int(n_bytes)}


def manifest_of(settings: Settings, tokenizer: Tokenizer, tally: Tally, made: list[dict[str, Any]]) -> dict[str, Any]:
    vocabulary = {"vocab_size": vocab_size(tokenizer), "end_of_text": end_of_text(tokenizer)}
    packages = ("gated-deltanet", "tokenizers", "numpy", "safetensors")
    return {
        "version": VERSION,
        "settings": asdict(settings),
        "sources": {name: {**told, "sha256": tally.hashes[name].hexdigest()} for name, told in tally.sources.items()},
        "skipped": dict(sorted(tally.skipped.items())),
        "skipped_examples": tally.examples,
        "tokenizer": {"fingerprint": settings.tokenizer, **vocabulary},
        "train": total([each["train"] for each in made]),
        "valid": total([each["valid"] for each in made]),
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        "shards": made,
    }


def total(counted: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each[name] for each in counted) for name in counted[0]}


def finish(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest comes last: a folder without it is unfinished. What killed runs left is removed."""
    for path in out.glob(".*.safetensors"):
        path.unlink()
    shards.write_whole(out / MANIFEST, as_json(manifest))
    return read_manifest(out)


def as_json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
