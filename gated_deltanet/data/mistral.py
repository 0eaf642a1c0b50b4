"""The 32,000 tokens of Mistral 7B, from the `mistral-common` wheel (Apache-2.0), exactly as SentencePiece applies them.

The tokens are as many as the paper's. Its model file is a protocol buffer, of which we read what BPE needs.
"""

import re
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from .formats import needs
from .tokenizer import as_text

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of pieces


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


def mistral_tokenizer() -> Tokenizer:
    """End of text is </s>, token 2. Every text without ▁ (U+2581) comes back as it was; ▁ comes back as a space."""
    return from_sentencepiece(model_file())


def model_file() -> Path:
    spec = find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise needs("the tokenizer mistral", "mistral-common")
    return Path(spec.origin).parent / "data" / "tokenizer.model.v1"


def from_sentencepiece(file: Path) -> Tokenizer:
    """A SentencePiece model of BPE with bytes for unknown characters and a space put before the text."""
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
