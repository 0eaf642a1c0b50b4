"""`gdn inspect`: people would rather look than read."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

LONGEST = 2048  # tokens: more do not fit on a page


@dataclass(frozen=True)
class Inspect:
    """Show what a model's memory does on a text, as a page to open in a browser.

    The gates α and β of each token, layer and head, how many tokens the memory reaches back, the norm and rank of the
    state S, and where the model was surprised. The text comes from --text, --file or standard input.
    The page is one file and loads nothing. The first 2,048 tokens are read; before the text is the end of text, with
    which documents begin in training.

    Example: gdn inspect runs/mine --text "def f(x): return x" --out page.html
    """

    checkpoint: Positional[Annotated[Path, arg(metavar="CHECKPOINT")]]
    """The folder of a saved model, with its tokenizer."""
    text: str | None = None
    """The text."""
    file: Path | None = None
    """A file with the text."""
    out: Path | None = None
    """The page to write: inspect.html, unless --png or --json is given."""
    png: Path | None = None
    """Draw the maps and curves into this file, too."""
    device: str = "cpu"
    """Where the model runs, as torch names it: cpu, cuda, cuda:1, mps."""
    json: bool = False
    """Print the numbers as one JSON document."""

    def run(self) -> None:
        out = Path("inspect.html") if not (self.out or self.png or self.json) else self.out
        check_writable("--out", out)
        check_writable("--png", self.png)
        document = look(self.checkpoint, self.read_text(), self.device)
        if self.json:
            print_numbers(document)
        if out:
            write_page(document, out)
        if self.png:
            write_png(document, self.png)

    def read_text(self) -> str:
        if self.text is not None and self.file is not None:
            raise ValueError("--text and --file exclude each other")
        if self.text is None and self.file is None and sys.stdin.isatty():
            raise ValueError("no text: give --text, --file, or write it to standard input")
        text = self.text if self.text is not None else read(self.file)
        if not text:
            raise ValueError("the text is empty, expected at least one token")
        return text


def read(file: Path | None) -> str:
    """The file, or standard input."""
    try:
        return (file.read_bytes() if file else sys.stdin.buffer.read()).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file or 'standard input'} is not a text in UTF-8: {error}") from error


def look(checkpoint: Path, text: str, device: str) -> dict[str, Any]:
    """What is printed, written and drawn."""
    from functools import partial

    import torch

    from gated_deltanet.cli.loading import load
    from gated_deltanet.cli.report import tracked
    from gated_deltanet.data.tokenizer import beginning_documents
    from gated_deltanet.inspection.document import document
    from gated_deltanet.inspection.trace import trace

    model, tokenizer = load(checkpoint, device)
    if not tokenizer.encode(text).ids:
        raise ValueError("the tokenizer makes no token of this text, expected at least one")
    encoding = beginning_documents(tokenizer).encode(text)  # so that the first token is expected or not, too
    if len(encoding.ids) > LONGEST:
        print(f"gdn: {len(encoding.ids):,} tokens, of which the first {LONGEST:,} are read", file=sys.stderr)
    tokens = torch.tensor(encoding.ids[:LONGEST], device=device)
    seen = trace(model, tokens, track=partial(tracked, what="reading the text"))
    return document(str(checkpoint), model.config, seen, encoding, tokenizer, text)


def print_numbers(document: dict[str, Any]) -> None:
    """On one line: there are too many for one line each."""
    import json

    print(json.dumps(document, ensure_ascii=False, allow_nan=False))


def write_page(document: dict[str, Any], out: Path) -> None:
    from gated_deltanet.inspection.page import page
    from gated_deltanet.models.checkpoint import write

    write(out, lambda unfinished: unfinished.write_text(page(document), encoding="utf-8"))
    tell(out, "open it in a browser")


def write_png(document: dict[str, Any], png: Path) -> None:
    from gated_deltanet.inspection.figure import draw
    from gated_deltanet.models.checkpoint import write

    write(png, lambda unfinished: draw(document, unfinished))
    tell(png, "the maps and curves")


def tell(file: Path, what: str) -> None:
    """On stderr: standard output may be the numbers."""
    print(f"{file} ({file.stat().st_size / 1000:,.0f} kB): {what}", file=sys.stderr)


def check_writable(option: str, file: Path | None) -> None:
    """Before the work, whose result would be lost."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise ValueError(f"{option} is {file}, expected a file in a folder that exists")
