"""What small models are trained on: Wikipedia and novels, cut from one stream without resets."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from gated_deltanet.data import prepare
from gated_deltanet.data.sources import documents
from gated_deltanet.data.tokenizer import train_bpe
from gated_deltanet.files import write_text
from gated_deltanet.train.data import is_prepared

SHARES = {"articles": 0.5, "novels": 0.5}  # of the bytes
BYTES_PER_TOKEN = 2.9
EXCERPT = 60_000  # characters of each novel in turn, longer than any row or evaluation


def make(data_dir: Path, out: Path, tokens: int, vocab_size: int) -> Path:
    """The folder of prepared texts, so many tokens or a little more; made once.

    data_dir: holds wikipedia_en/train.jsonl.gz, and novels_en/train.
    """
    if is_prepared(out):
        return out
    sources = {name: list(source) for name, source in of_sources(data_dir, int(tokens * BYTES_PER_TOKEN)).items()}
    lines = [json.dumps({"text": text}) + "\n" for texts in sources.values() for text in texts]
    tokenizer = train_bpe((text for texts in sources.values() for text in texts), vocab_size)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as folder:  # apart from another cell's, which may make the same
        file, made = Path(folder, "texts.jsonl"), Path(folder, "prepared")
        write_text(file, "".join(lines))
        prepare(str(file), tokenizer, made, valid=0.02)
        with suppress(OSError):  # the other was quicker
            made.rename(out)
    return out


def of_sources(data_dir: Path, n_bytes: int) -> dict[str, Iterator[str]]:
    def articles() -> Iterator[str]:
        return (each.text for each in documents(str(data_dir / "wikipedia_en" / "train.jsonl.gz")))

    kinds = {"articles": articles, "novels": lambda: excerpts(data_dir)}
    return {name: up_to(make_texts(), int(SHARES[name] * n_bytes)) for name, make_texts in kinds.items()}


def up_to(texts: Iterator[str], n_bytes: int) -> Iterator[str]:
    for text in texts:
        if n_bytes <= 0:
            return
        n_bytes -= len(text.encode())
        yield text


def excerpts(data_dir: Path) -> Iterator[str]:
    """A part of each novel, then another part of each."""
    novels = [each.text for each in documents(str(data_dir / "novels_en" / "train"))]
    for start in range(0, max(map(len, novels)), EXCERPT):
        yield from (novel[start : start + EXCERPT] for novel in novels if len(novel) > start)
