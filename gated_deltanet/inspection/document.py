"""What was seen, as plain values: what `--json` prints, and what the page and the figure are made of."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from gated_deltanet.data.tokenizer import beginning_documents, byte_tokenizer
from gated_deltanet.files import finite
from gated_deltanet.models import CausalLM, ModelConfig, count

from .trace import LayerTrace, Piece, Trace, trace


def inspect(
    model: CausalLM,
    text: str,
    tokenizer: Tokenizer | None = None,
    *,
    name: str = "model",
    longest: int | None = None,
    track: Callable[[Sequence[Piece]], Iterable[Piece]] = lambda pieces: pieces,
) -> dict[str, Any]:
    """What a model's memory does on a text, as plain JSON values: of each token, layer and head.

    tokenizer: the model's; None for bytes. name: in titles. longest: only so many tokens are read; None for all. track
    goes over the pieces of the text to show progress. Before the text is the end of text, with which documents begin in
    training, so that the first token is expected or not, too. `page` makes a web page of the result, `figure.draw` a
    picture.
    """
    tokenizer = tokenizer or byte_tokenizer()
    if not tokenizer.encode(text).ids:
        raise ValueError("the tokenizer makes no token of this text, expected at least one")
    encoding = beginning_documents(tokenizer).encode(text)
    tokens = torch.tensor(encoding.ids[:longest], device=model.device)
    return document(name, model.config, trace(model, tokens, track), encoding, tokenizer, text)


def document(
    name: str, config: ModelConfig, seen: Trace, encoding: Encoding, tokenizer: Tokenizer, text: str
) -> dict[str, Any]:
    """encoding: of the whole text, of which the first tokens were seen. NaN, of what is not defined, is null."""
    L = len(seen.surprise)
    return {
        "checkpoint": name,
        "parameters": count.parameters(config),
        "config": config.to_dict(),
        "n_tokens": len(encoding.ids),  # of which those below were read
        "tokens": pieces_of(text, encoding, tokenizer)[:L],
        "surprise": rounded(seen.surprise, 3),
        "expected": [
            None if i < 0 else tokenizer.decode([i], skip_special_tokens=False) for i in seen.expected.tolist()
        ],
        "state_at": seen.at.tolist(),
        "layers": [layer_of(type(config.mixer(i)).__name__, layer) for i, layer in enumerate(seen.layers)],
    }


def layer_of(mixer: str, layer: LayerTrace) -> dict[str, Any]:
    """Each quantity by head, then token."""
    return {
        "mixer": mixer,
        "alpha": by_head(layer.alpha, 5),
        "beta": by_head(layer.beta, 4),
        "memory": by_head(layer.memory, 2),
        "norm": by_head(layer.norm, 5),
        "rank": by_head(layer.rank, 3),
    }


def by_head(x: Tensor | None, decimals: int) -> list[list[float | None]] | None:
    return None if x is None else rounded(x.T, decimals)


def rounded(x: Tensor, decimals: int) -> Any:
    """Lists of Python's floats, which print as short as they are."""
    return finite(x.cpu().double().round(decimals=decimals).tolist())


def pieces_of(text: str, encoding: Encoding, tokenizer: Tokenizer) -> list[str]:
    """The text that each token stands for: "" for all but the first token of one character."""
    pieces, done = [], 0
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        added = start == end  # not in the text: the start of a sequence, say
        pieces.append(str(tokenizer.id_to_token(token)) if added else text[max(start, done) : end])
        done = max(done, end)
    return pieces
