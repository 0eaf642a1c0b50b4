"""Tokenizers, all of the `tokenizers` library, so that a model's folder holds an ordinary tokenizer.json.

The bytes; a byte-level BPE made from a corpus, which splits text as GPT-2 does; the 32,000 tokens of Mistral 7B; and
those of files and of the hub. In a text special tokens are text, and `encode` adds none: documents are set apart by
`rows`.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

END_OF_TEXT = "<|endoftext|>"
ENDS_OF_TEXT = (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "[EOS]")  # as others call it
KNOWN = '"bytes", "mistral", a tokenizer.json, its folder, or a name on the Hugging Face hub'
TEXTS_AT_ONCE = 256  # their encodings are larger than their tokens
SMALLEST = 257  # the bytes and the end of text
SPACE = "▁"  # as SentencePiece writes it
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # SentencePiece's kinds of pieces


def get(name: str | Path) -> Tokenizer:
    """A tokenizer: "bytes", "mistral", a tokenizer.json, a folder that holds one, or on the hub name or hf:name."""
    path = Path(name)
    if name == "bytes":
        return byte_tokenizer()
    if name == "mistral":
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


def from_hub(given: str) -> Tokenizer:
    """given: a name, or hf:name."""
    from . import reach  # it takes as long as all of the above

    name = reach.hub_name(given)
    if name is None:
        raise ValueError(f"tokenizer is {given!r}, expected {KNOWN}: there is no such folder; or write hf:owner/name")
    try:
        found = reach.on_hub(name)
        return load(found) if Path(found).is_dir() else as_text(Tokenizer.from_pretrained(found))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"tokenizer is {given!r}, expected {KNOWN}: {error}") from error


def as_text(tokenizer: Tokenizer) -> Tokenizer:
    """Special tokens written out in a text are text: no document can end itself. None is added, cut or filled up."""
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = None  # that of `beginning_documents`, or another's: BOS, …
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE made from texts, which splits them as GPT-2 does.

    The same texts give the same tokenizer, which encodes every text, and gives it back as it was.

    It has fewer tokens than vocab_size if the texts are too short for as many. End of text is token 0.
    """
    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size is {vocab_size}, expected {SMALLEST} or more: the bytes and the end of text")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return as_text(tokenizer)


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


def mistral_tokenizer() -> Tokenizer:
    """The 32,000 tokens of Mistral 7B, from the `mistral-common` wheel (Apache-2.0), as SentencePiece applies them.

    They are as many as the paper's. End of text is </s>, token 2. Every text without ▁ (U+2581) comes back
    as it was; ▁ comes back as a space.
    """
    return from_sentencepiece(model_file())


def model_file() -> Path:
    spec = find_spec("mistral_common")
    if spec is None or spec.origin is None:
        how = "pip install 'gated-deltanet[data]'"
        raise ModuleNotFoundError(f"the tokenizer mistral needs mistral-common: {how}")
    return Path(spec.origin).parent / "data" / "tokenizer.model.v1"


def from_sentencepiece(file: Path) -> Tokenizer:
    """A SentencePiece model of BPE with bytes for unknown characters and a space put before the text.

    Its file is a protocol buffer, of which we read what BPE needs.
    """
    pieces = list(read_pieces(file.read_bytes()))
    vocabulary = {piece.text: i for i, piece in enumerate(pieces)}
    unknown = next(piece.text for piece in pieces if piece.kind == UNKNOWN)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    if not any(re.search(f"[^{SPACE}]{SPACE}", piece.text) for piece in pieces):
        # No piece goes on past the start of a word: words can be encoded one by one, and remembered.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE}+[^{SPACE}]*"), "isolated")
    to_text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(to_text)
    special = [piece.text for piece in pieces if piece.kind in (UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return as_text(tokenizer)


def merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first, as SentencePiece merges."""
    normal = {piece.text: i for i, piece in enumerate(pieces) if piece.kind == NORMAL}
    found = []
    for text, i in normal.items():
        halves = ((text[:at], text[at:]) for at in range(1, len(text)))
        ways = [(left, right) for left, right in halves if left in normal and right in normal]
        ways.sort(key=lambda way: (normal[way[0]], normal[way[1]]))
        found += [(-pieces[i].score, way) for way in ways]
    return [way for _, way in sorted(found, key=lambda each: each[0])]


def read_pieces(model: bytes) -> Iterator[Piece]:
    """sentencepiece_model.proto: field 1 of the model is a piece; its fields 1, 2, 3 are text, score, kind."""
    for field, message in fields(model):
        if field == 1:
            piece = dict(fields(message))
            kind = varint(piece[3], 0)[0] if 3 in piece else NORMAL
            yield Piece(piece[1].decode(), struct.unpack("<f", piece[2])[0], kind)


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the content of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        key, first = varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 2:
            size, first = varint(message, first)
            at = first + size
        else:
            at = varint(message, first)[1] if wire == 0 else first + {1: 8, 5: 4}[wire]
        yield number, message[first:at]


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first, and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
