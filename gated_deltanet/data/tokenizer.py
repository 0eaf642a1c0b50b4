"""Tokenizers, all of the `tokenizers` library, so that a model's folder holds an ordinary tokenizer.json.

In a text special tokens are text, and `encode` adds none: documents are set apart by `rows`.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

END_OF_TEXT = "<|endoftext|>"
ENDS_OF_TEXT = (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "[EOS]")  # as others call it
TEXTS_AT_ONCE = 256  # their encodings are larger than their tokens


def get(name: str | Path) -> Tokenizer:
    """A tokenizer: "bytes", "mistral", a tokenizer.json, a folder that holds one, or a name on the Hugging Face hub."""
    path = Path(name)
    if name == "bytes":
        return byte_tokenizer()
    if name == "mistral":
        from .mistral import mistral_tokenizer

        return mistral_tokenizer()
    if path.is_dir():
        return load(path)
    if path.suffix == ".json":
        return read(path)
    return from_hub(str(name))


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The tokens of each text, unsigned integers."""
    if is_bytes(tokenizer):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]
    groups = (texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE))
    encodings = (tokenizer.encode_batch_fast(group, add_special_tokens=False) for group in groups)
    return [np.array(each.ids, np.uint32) for group in encodings for each in group]


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a document that begins with this text. In training the end of the one before is before it."""
    return [end_of_text(tokenizer), *tokenizer.encode(text, add_special_tokens=False).ids]


def beginning_documents(tokenizer: Tokenizer) -> Tokenizer:
    """A copy whose `encode` is `prompt_ids`, for others to use; without an end of text nothing is put before a text."""
    copy, end = as_text(Tokenizer.from_str(tokenizer.to_str())), find_end_of_text(tokenizer)
    if end is not None:
        name = tokenizer.id_to_token(end)
        copy.post_processor = TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", name, "$B:1"], special_tokens=[(name, end)]
        )
    return copy


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest token: a vocabulary may have holes."""
    return max(tokenizer.get_vocab().values()) + 1


def find_end_of_text(tokenizer: Tokenizer) -> int | None:
    return next((i for i in map(tokenizer.token_to_id, ENDS_OF_TEXT) if i is not None), None)


def end_of_text(tokenizer: Tokenizer) -> int:
    if (found := find_end_of_text(tokenizer)) is not None:
        return found
    raise ValueError(f"the tokenizer has no end of text, expected one of {', '.join(ENDS_OF_TEXT)}")


def fingerprint(tokenizer: Tokenizer) -> str:
    """Two tokenizers of one fingerprint encode alike."""
    return sha256(tokenizer.to_str().encode()).hexdigest()[:32]


def is_bytes(tokenizer: Tokenizer) -> bool:
    return tokenizer.get_vocab_size() == 257 and fingerprint(tokenizer) == fingerprint_of_bytes()


@cache
def fingerprint_of_bytes() -> str:
    return fingerprint(byte_tokenizer())


def byte_tokenizer() -> Tokenizer:
    """Token i is the byte i; 256 is the end of text. Every text comes back as it was.

    `encode(text).ids`, `decode(ids)`: bytes that are no UTF-8 decode to U+FFFD.
    """
    vocabulary = {character: byte for byte, character in enumerate(characters())}
    tokenizer = Tokenizer(models.BPE(vocabulary | {END_OF_TEXT: 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return as_text(tokenizer)


def characters() -> list[str]:
    """The character by which ByteLevel writes each byte: itself if it can be seen, else one from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def load(folder: str | Path) -> Tokenizer:
    """The tokenizer in a model's folder."""
    file = Path(folder) / "tokenizer.json"
    if not file.exists():
        raise FileNotFoundError(
            f"no tokenizer.json in {folder}, expected the folder of a model saved with its tokenizer"
        )
    return read(file)


def read(file: Path) -> Tokenizer:
    if not file.exists():
        raise FileNotFoundError(f"no file {file}, expected a tokenizer.json")
    try:
        return as_text(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file} is not a tokenizer: {error}") from error


def from_hub(name: str) -> Tokenizer:
    try:
        return as_text(Tokenizer.from_pretrained(name))
    except Exception as error:  # the library raises nothing narrower
        known = '"bytes", "mistral", a tokenizer.json, its folder, or a name on the Hugging Face hub'
        raise ValueError(f"tokenizer is {name!r}, expected {known}: {error}") from error


def as_text(tokenizer: Tokenizer) -> Tokenizer:
    """Special tokens written out in a text are text: no document can end itself. None is added, cut or filled up."""
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = None  # that of `beginning_documents`, or another's: BOS, …
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
