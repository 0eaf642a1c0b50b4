"""Prompts of so many tokens, and what a model completes them with: what the suites recall and longbench share."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gated_deltanet.result import Track, answer_each, answer_file

from .model import Model

AT_ONCE = 16  # prompts, after which their completions are kept
HALF = "\ufffd"  # what is decoded from a part of a character's bytes


class Codec(Protocol):
    """Of a tokenizer, without special tokens."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


def length_of(model: Model, max_length: int | None, default: int) -> int:
    """Tokens of prompt and answer: max_length, else the default, or fewer if the model is made for fewer."""
    return max_length or min(default, model.context_length or default)


def room(model: Model, length: int, answer: int) -> int:
    """Tokens of a prompt that leave so many for the answer."""
    found = length - len(model.encode_prompt("")) - answer
    if found < 2:
        raise ValueError(f"{length} tokens have no room for an answer of {answer}, expected a larger --max-length")
    return found


def cut_around(text: str, wanted: Sequence[str], room: int, codec: Codec) -> str:
    """So many tokens, half of them before the first place that holds one of `wanted`, in any case; the beginning if
    there is none. A text that has room is left whole."""
    tokens = codec.encode(text)
    if len(tokens) <= room:
        return text
    found = [match.start() for each in wanted if (match := re.search(re.escape(each), text, re.IGNORECASE))]
    at = len(codec.encode(text[: min(found, default=0)]))
    start = max(0, at - room // 2)
    return codec.decode(tokens[start : start + room]).strip(HALF)


def cut_middle(text: str, room: int, codec: Codec) -> str:
    """So many tokens, half of them from the beginning and half from the end, as LongBench cuts."""
    tokens = codec.encode(text)
    if len(tokens) <= room:
        return text
    head = room // 2
    return codec.decode(tokens[:head]).rstrip(HALF) + codec.decode(tokens[len(tokens) - room + head :]).lstrip(HALF)


def complete_all(
    model: Model,
    prompts: Sequence[str],
    max_tokens: int,
    stop: Sequence[str],
    *,
    keep: str | Path | None,
    track: Track,
    what: str,
) -> list[str]:
    """The completion of each prompt; those of like length together. keep: the folder in which they are kept."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    ordered = [prompts[i] for i in order]
    file = answer_file(keep, model.identity, max_tokens, tuple(stop))
    made = answer_each(ordered, lambda some: complete(model, some, max_tokens, stop), file, AT_ONCE)
    found = [text for _, text in zip(track(ordered, what), made, strict=True)]
    return [text for _, text in sorted(zip(order, found, strict=True))]


def complete(model: Model, prompts: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[str]:
    return model.complete([model.encode_prompt(prompt) for prompt in prompts], max_tokens, stop)
