"""`gdn data`: text as shards of tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Prepare:
    """Tokenise text into shards that training reads without loading them.

    SOURCE is one or several, separated by commas, of: stdlib (this Python's library); a file, a folder or a glob of
    .txt, .md, .py, .jsonl (each also .gz) and .parquet; hf:dataset[:config[:split]]. An interrupted run goes on where
    it stopped when the command is given again. Rows of jsonl with prompt and answer, or messages, are learnt in their
    answers only (docs/training.md). The result is the same for any number of workers.

    Example: gdn data prepare stdlib --tokenizer bytes --out runs/stdlib-tokens
    """

    source: Positional[str]
    """Read documents from here."""
    out: Path
    """Write the shards, their manifest and the tokenizer to this folder."""
    tokenizer: str = "bytes"
    """Encode with bytes, mistral, a tokenizer.json, a folder that holds one, or a name on the Hugging Face hub."""
    field: str = "text"
    """Take the text of a row of jsonl or parquet from this field."""
    separator: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="(a file is one document)")] = None
    """Split text files into documents at this text, for example '<|endoftext|>'."""
    valid: float = 0.01
    """Keep this share of the documents for validation, chosen by their content."""
    seed: int = 0
    """Seed of that choice."""
    shard_bytes: Annotated[int | None, arg(metavar="N", help_behavior_hint="(a 64th, 1 to 64 MiB)")] = None
    """Put so many bytes of text in a shard."""
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(as many as there are cores)")] = None
    """Work with so many processes."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.data import prepare

        with bar(f"tokenising {self.source}") as progress:
            manifest = prepare(
                self.source,
                self.tokenizer,
                self.out,
                field=self.field,
                separator=self.separator,
                valid=self.valid,
                seed=self.seed,
                shard_bytes=self.shard_bytes,
                workers=self.workers or cores(),
                progress=progress,
            )
        show(manifest, self.out, self.json)


@dataclass(frozen=True)
class Check:
    """Check the hashes of a prepared folder's shards, and tell what it holds.

    Example: gdn data check runs/stdlib-tokens
    """

    folder: Positional[Path]
    """A folder that gdn data prepare has written."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.data import open_corpus, read_manifest

        open_corpus(self.folder, verify=True)
        show(read_manifest(self.folder), self.folder, self.json)


@dataclass(frozen=True)
class Data:
    """Text as tokens, ready for training.

    Example: gdn data prepare stdlib --out runs/stdlib-tokens
    """

    verb: Prepare | Check

    def run(self) -> None:
        self.verb.run()


def cores() -> int:
    """That this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def bar(what: str) -> Iterator[Any]:
    """A function to tell how many bytes of how many are done, which draws a bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda at, total: progress.update(task, completed=at, total=total)


def show(manifest: dict[str, Any], folder: Path, json: bool) -> None:
    from gated_deltanet.cli.output import print_json, print_table

    if json:
        return print_json({"out": str(folder), **manifest, "shards": len(manifest["shards"])})
    columns = ["split", "documents", "tokens", "bytes", "bytes per token"]
    print_table(f"Tokens in {folder}", columns, rows(manifest), notes(manifest, folder))


def rows(manifest: dict[str, Any]) -> list[list[str]]:
    found = []
    for split in ("train", "valid"):
        told = manifest[split]
        per_token = f"{told['bytes'] / told['tokens']:.2f}" if told["tokens"] else ""
        found.append([split, *(f"{told[name]:,}" for name in ("documents", "tokens", "bytes")), per_token])
    return found


def notes(manifest: dict[str, Any], folder: Path) -> list[str]:
    skipped = [f"Skipped: {n} {reason}." for reason, n in manifest["skipped"].items()]
    examples = [f"Such as {example}" for example in manifest["skipped_examples"]]
    hashes = [f"{name}: sha256 {told['sha256']}" for name, told in manifest["sources"].items()]
    return [*skipped, *examples, *hashes, f"In Python: gated_deltanet.data.open_corpus({str(folder)!r})"]
