"""`gdn inspect`: what a model's memory does on a text, as a page, a picture or numbers."""

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
    """Inspect the saved model in this folder, which has its tokenizer, too."""
    text: Annotated[str | None, arg(metavar="TEXT")] = None
    """Read this text."""
    file: Annotated[Path | None, arg(metavar="PATH")] = None
    """Read the text in this file."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the page to this file: by default inspect.html, unless --png or --json is given."""
    png: Annotated[Path | None, arg(metavar="PATH")] = None
    """Draw the maps and curves into this file, too: a .png, .svg or .pdf."""
    device: str = "cpu"
    """Run the model on this device, as torch names it: cpu, cuda, cuda:1, mps."""
    json: bool = False
    """Print the numbers as one JSON document."""

    def run(self) -> None:
        from gated_deltanet.cli.output import check_out

        out = Path("inspect.html") if not (self.out or self.png or self.json) else self.out
        if out:
            check_out(out, ".html", ".htm")
        if self.png:
            check_out(self.png, ".png", ".svg", ".pdf", option="--png")
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

    from gated_deltanet.cli.loading import load
    from gated_deltanet.cli.output import tracked
    from gated_deltanet.inspection import inspect

    model, tokenizer = load(checkpoint, device)
    track = partial(tracked, what="reading the text")
    document = inspect(model, text, tokenizer, name=str(checkpoint), longest=LONGEST, track=track)
    if document["n_tokens"] > LONGEST:
        print(f"gdn: {document['n_tokens']:,} tokens, of which the first {LONGEST:,} are read", file=sys.stderr)
    return document


def print_numbers(document: dict[str, Any]) -> None:
    """On one line: there are too many for one line each."""
    import json

    print(json.dumps(document, ensure_ascii=False, allow_nan=False))


def write_page(document: dict[str, Any], out: Path) -> None:
    from gated_deltanet.files import write_text
    from gated_deltanet.inspection import page

    write_text(out, page(document))
    tell(out, "open it in a browser")


def write_png(document: dict[str, Any], png: Path) -> None:
    from gated_deltanet.files import write
    from gated_deltanet.inspection.figure import draw

    write(png, lambda unfinished: draw(document, unfinished))
    tell(png, "the maps and curves")


def tell(file: Path, what: str) -> None:
    """On stderr: standard output may be the numbers."""
    print(f"{file} ({file.stat().st_size / 1000:,.0f} kB): {what}", file=sys.stderr)
