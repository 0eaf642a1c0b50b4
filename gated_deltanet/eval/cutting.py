"""Texts cut to so many tokens: around something in them, or in their middle."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

HALF = "\ufffd"  # what is decoded from a part of a character's bytes


class Codec(NamedTuple):
    """Of a tokenizer, without special tokens."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


def around(text: str, wanted: Sequence[str], room: int, codec: Codec) -> str:
    """So many tokens, half of them before the first place that holds one of `wanted`, in any case; the beginning if
    there is none. A text that has room is left whole."""
    tokens = codec.encode(text)
    if len(tokens) <= room:
        return text
    found = [match.start() for each in wanted if (match := re.search(re.escape(each), text, re.IGNORECASE))]
    at = len(codec.encode(text[: min(found, default=0)]))
    start = max(0, at - room // 2)
    return codec.decode(tokens[start : start + room]).strip(HALF)


def middle_out(text: str, room: int, codec: Codec) -> str:
    """So many tokens, half of them from the beginning and half from the end, as LongBench cuts."""
    tokens = codec.encode(text)
    if len(tokens) <= room:
        return text
    head = room // 2
    return codec.decode(tokens[:head]).rstrip(HALF) + codec.decode(tokens[len(tokens) - room + head :]).lstrip(HALF)
