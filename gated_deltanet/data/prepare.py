"""Preparing a corpus: documents → tokens → shards, by several processes, from where an earlier run stopped.

One process reads the documents and cuts them into shards, in the same way for any number of workers. A worker makes
one shard at a time, or finds it made, of the same texts and undamaged.
"""

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as field_of
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from gated_deltanet import files

from . import shards
from .chat import TEMPLATE, Content, read_template, template_for
from .corpus import VALID, Encoded, encode_documents
from .formats import Document
from .shards import MANIFEST, VERSION, read_manifest
from .sources import Part, describe, names, parts_of
from .tokenizer import as_text, end_of_text, fingerprint, get, vocab_size
from .workers import in_order

SETTINGS = "settings.json"
EXAMPLES = 5  # of skipped documents, that are named
SMALLEST, LARGEST = 2**20, 2**26  # bytes of text in a shard, unless told


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
    chat_template: str | None = None
    """Its fingerprint."""
    version: int = VERSION


class Task(NamedTuple):
    file: Path
    contents: list[Content]
    tokenizer: str
    """A tokenizer.json."""
    settings: Settings


class Contents(NamedTuple):
    """Of one shard."""

    contents: list[Content]
    at: int
    """Bytes of all files read so far."""


@dataclass
class Tally:
    """What was read so far."""

    sources: dict[str, Counter[str]] = field_of(default_factory=dict)
    hashes: dict[str, Any] = field_of(default_factory=dict)
    skipped: Counter[str] = field_of(default_factory=Counter)
    examples: list[str] = field_of(default_factory=list)


def prepare(
    source: str | Sequence[str],
    tokenizer: Tokenizer | str | Path,
    out: str | Path,
    *,
    field: str = "text",
    separator: str | None = None,
    valid: float = VALID,
    seed: int = 0,
    shard_bytes: int | None = None,
    workers: int = 1,
    chat_template: str | None = None,
    progress: Callable[[int, int | None], None] = lambda at, total: None,
) -> dict[str, Any]:
    """Write the tokens of a source to the folder `out`, and return the manifest: what `gdn data prepare` does.

    tokenizer: or what `tokenizer.get` finds one by. field: of a row of jsonl or parquet, the one that holds the text.
    separator: between the documents of a text file. valid: share of the documents for validation, chosen by content
    and seed. shard_bytes: of text in a shard. chat_template: in Jinja, for rows with `messages` (`chat`); without it
    that of the tokenizer's folder.

    An interrupted run is taken up where it stopped; a finished one is left as it is. The files are the same for any
    number of workers. progress: is told how many bytes of how many have been read and made into shards.
    """
    if not isinstance(tokenizer, Tokenizer):
        chat_template = chat_template or read_template(tokenizer)
        tokenizer = get(tokenizer)
    template = template_for(chat_template, tokenizer)
    sources = {name: parts_of(name, field, separator, template) for name in names(source)}
    parts = [part for each in sources.values() for part in each]
    size = default_shard_bytes(parts) if shard_bytes is None else shard_bytes
    settings = Settings(tuple(sources), fingerprint(tokenizer), field, separator, valid, seed, size)
    settings = settings if template is None else replace(settings, chat_template=template.fingerprint)
    check(settings, workers)
    out, tally, made = Path(out), Tally(), []
    begin(out, settings, tokenizer, chat_template)
    if (out / MANIFEST).exists():
        return read_manifest(out)
    positions: list[int] = []  # after each shard

    def tasks():
        for i, (contents, at) in enumerate(read_shards(sources, size, tally)):
            positions.append(at)
            yield Task(out / f"{i:05}.safetensors", contents, tokenizer.to_str(), settings)

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


def begin(out: Path, settings: Settings, tokenizer: Tokenizer, chat_template: str | None) -> None:
    """An empty folder gets the settings; one that has some must have the same."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / SETTINGS
    if not file.exists():
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise ValueError(f"{out} holds other files, expected an empty folder or one that gdn data prepare began")
        files.write_json(file, asdict(settings))
    told, now = files.read_json(file), json.loads(json.dumps(asdict(settings)))
    for name in now:
        if told.get(name) != now[name]:
            change = f"{out} was begun with {name} {short(told.get(name))}, not {short(now[name])}"
            raise ValueError(f"{change}: choose another folder, or delete this one")
    files.write_text(out / "tokenizer.json", tokenizer.to_str(pretty=True))
    if chat_template is not None:
        files.write_text(out / TEMPLATE, chat_template)


def make(task: Task) -> dict[str, Any]:
    """A shard, unless it is there, and what the manifest tells of it."""
    text_sha256, settings = shards.hash_of_contents(task.contents), task.settings
    encoded, header = existing(task.file)
    if encoded is None or header is None:
        tokenizer = tokenizer_of(task.tokenizer)
        encoded = encode_documents(task.contents, tokenizer, valid=settings.valid, seed=settings.seed)
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
    files.clear(out)
    files.write_json(out / MANIFEST, manifest)
    return read_manifest(out)


def default_shard_bytes(parts: Sequence[Part]) -> int:
    """A 64th of the files, so that there is work for many processes; the largest for a stream, whose end is unknown."""
    total = total_bytes(parts)
    return LARGEST if total is None else min(max(total // 64, SMALLEST), LARGEST)


def total_bytes(parts: Sequence[Part]) -> int | None:
    sizes = [part.n_bytes for part in parts if part.n_bytes is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def read_shards(parts_of: dict[str, list[Part]], shard_bytes: int, tally: Tally) -> Iterator[Contents]:
    """As many documents as make shard_bytes of text, or a little more. parts_of: each source."""
    contents, size, before = [], 0, 0
    for name, parts in parts_of.items():
        tally.sources[name], tally.hashes[name] = Counter(documents=0, bytes=0), sha256()
        for part in parts:
            for document in tallied(part, name, tally):
                contents.append(document.content)
                size += len(document.text.encode())
                if size >= shard_bytes:
                    yield Contents(contents, before + document.at)
                    contents, size = [], 0
            before += part.n_bytes or 0
    if contents:
        yield Contents(contents, before)


def tallied(part: Part, source: str, tally: Tally) -> Iterator[Document]:
    for each in part.read():
        if isinstance(each, Document):
            tally.sources[source].update(documents=1, bytes=len(each.text.encode()))
            shards.update(tally.hashes[source], each.content)
            yield each
        else:
            tally.skipped[each.reason] += 1
            if len(tally.examples) < EXAMPLES:
                tally.examples.append(f"{each.name}: {each.reason}")
