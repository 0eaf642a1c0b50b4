"""`gdn tokenizer`: vocabularies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Train:
    """Make a byte-level BPE vocabulary from text.

    SOURCE is as for gdn data prepare. The same text gives the same vocabulary, which encodes every text and gives it
    back as it was; <|endoftext|> is token 0.

    Example: gdn tokenizer train stdlib --vocab-size 4096 --out tokenizer.json
    """

    source: Positional[str]
    """Read documents from here."""
    out: Path
    """Write this file: a tokenizer.json, as Hugging Face's tokenizers and transformers read it."""
    vocab_size: int = 8192
    """Make so many tokens, the 256 bytes and the end of text included."""
    field: str = "text"
    """Take the text of a row of jsonl or parquet from this field."""
    separator: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="(a file is one document)")] = None
    """Split text files into documents at this text."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.cli.output import check_out, print_json, print_table

        check_out(self.out, ".json")
        told = trained(self)
        if self.json:
            return print_json(told)
        print_table(f"Tokenizer in {self.out}", ["what", "found"], rows(told))


@dataclass(frozen=True)
class Show:
    """Tell what a tokenizer is, and how it cuts a text.

    Example: gdn tokenizer show bytes --text "Grüße"
    """

    tokenizer: Positional[str]
    """Show bytes, mistral, a tokenizer.json, a folder that holds one, or a name on the Hugging Face hub."""
    text: str = "The gated delta rule: S = α(I − βkkᵀ)S + βkvᵀ"
    """Cut this text into tokens."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.cli.output import print_json, print_table
        from gated_deltanet.data import tokenizer

        found = tokenizer.get(self.tokenizer)
        ids = tokenizer.encode(found, [self.text])[0].tolist()
        told = {"vocab_size": tokenizer.vocab_size(found), "end_of_text": tokenizer.end_of_text(found)}
        told |= {"fingerprint": tokenizer.fingerprint(found), "text": self.text, "tokens": ids}
        told |= {"pieces": [found.id_to_token(i) for i in ids], "decoded": found.decode(ids)}
        if self.json:
            return print_json(told)
        print_table(f"Tokenizer {self.tokenizer}", ["what", "found"], told.items())


@dataclass(frozen=True)
class Tokenizer:
    """Vocabularies.

    Example: gdn tokenizer train stdlib --vocab-size 4096 --out tokenizer.json
    """

    verb: Train | Show

    def run(self) -> None:
        self.verb.run()


def trained(options: Train) -> dict[str, Any]:
    """The tokenizer is written; what is told of it."""
    from collections import Counter

    from gated_deltanet.data import tokenizer
    from gated_deltanet.data.sources import documents
    from gated_deltanet.files import write_text

    skipped, read = Counter(), Counter()

    def texts():
        for each in documents(options.source, field=options.field, separator=options.separator, skipped=skipped):
            read.update(documents=1, bytes=len(each.text.encode()))
            yield each.text

    made = tokenizer.train_bpe(texts(), options.vocab_size)
    if not read["documents"]:
        raise ValueError(f"no documents in {options.source}; skipped: {dict(skipped)}")
    write_text(options.out, made.to_str(pretty=True))
    return {
        "out": str(options.out),
        "vocab_size": tokenizer.vocab_size(made),
        "fingerprint": tokenizer.fingerprint(made),
        **read,
        "skipped": dict(skipped),
    }


def rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    from gated_deltanet.data.sources import describe

    return [
        ("tokens", f"{told['vocab_size']:,}"),
        ("fingerprint", told["fingerprint"]),
        ("made from", f"{told['documents']:,} documents, {told['bytes']:,} bytes"),
        ("skipped", describe(told["skipped"]) or "none"),
    ]
