"""The documents of a source, read once and cut into shards of text; what was read is told of each source."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from .formats import Document
from .shards import update
from .sources import Part

EXAMPLES = 5  # of skipped documents, that are named
SMALLEST, LARGEST = 2**20, 2**26  # bytes of text in a shard, unless told


class Texts(NamedTuple):
    """Of one shard."""

    texts: list[str]
    at: int
    """Bytes of all files read so far."""


@dataclass
class Tally:
    """What was read so far."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    hashes: dict[str, Any] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def default_shard_bytes(parts: Sequence[Part]) -> int:
    """A 64th of the files, so that there is work for many processes; the largest for a stream, whose end is unknown."""
    total = total_bytes(parts)
    return LARGEST if total is None else min(max(total // 64, SMALLEST), LARGEST)


def total_bytes(parts: Sequence[Part]) -> int | None:
    sizes = [part.n_bytes for part in parts if part.n_bytes is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def read_shards(parts_of: dict[str, list[Part]], shard_bytes: int, tally: Tally) -> Iterator[Texts]:
    """As many documents as make shard_bytes of text, or a little more. parts_of: each source."""
    texts, size, before = [], 0, 0
    for name, parts in parts_of.items():
        tally.sources[name], tally.hashes[name] = Counter(documents=0, bytes=0), sha256()
        for part in parts:
            for document in tallied(part, name, tally):
                texts.append(document.text)
                size += len(document.text.encode())
                if size >= shard_bytes:
                    yield Texts(texts, before + document.at)
                    texts, size = [], 0
            before += part.n_bytes or 0
    if texts:
        yield Texts(texts, before)


def tallied(part: Part, source: str, tally: Tally) -> Iterator[Document]:
    for each in part.read():
        if isinstance(each, Document):
            tally.sources[source].update(documents=1, bytes=len(each.text.encode()))
            update(tally.hashes[source], each.text)
            yield each
        else:
            tally.skipped[each.reason] += 1
            if len(tally.examples) < EXAMPLES:
                tally.examples.append(f"{each.name}: {each.reason}")
