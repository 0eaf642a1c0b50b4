"""A language model as the suites use it: it encodes texts, scores tokens and completes prompts. Ours, over their state.

`hf_model` has the same for Hugging Face's models; `checkpoint` opens either.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from gated_deltanet.data import tokenizer as tokenizers
from gated_deltanet.models.generate import generate
from gated_deltanet.models.model import CausalLM, State
from gated_deltanet.models.sampling import Sampling

from .prefix_sharing import token_logprobs

PIECE = 4096  # tokens read at once


class Model(Protocol):
    """name: for tables. identity: changes when the model would answer differently, None: unknown, it is in memory only.
    first_token: comes before a text. context_length: tokens that the model says it is made for, None: it does not.
    max_positions: tokens that it can read at all, None: as many as there are."""

    name: str
    identity: str | None
    first_token: int
    context_length: int | None
    max_positions: int | None

    def encode(self, text: str) -> list[int]:
        """Special tokens written out in it are text, and none is added."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """With the special tokens that its tokenizer puts before a text."""
        ...

    def decode(self, tokens: list[int]) -> str: ...

    def losses(self, row: Sequence[int]) -> Tensor:
        """−log p of each token but the first, [L − 1], float64."""
        ...

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: Sequence[str] = ()) -> list[str]:
        """What it finds most probable after each prompt, up to so many tokens, its end of text or one of `stop`."""
        ...


class OurModel:
    """A `CausalLM` with its tokenizer as a `Model`."""

    context_length: int | None = None
    max_positions: int | None = None

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, name: str = "model", identity: str | None = None):
        self.model, self.tokenizer, self.name, self.identity = model.eval(), tokenizer, name, identity
        self.first_token = tokenizers.end_of_text(tokenizer)

    def encode(self, text: str) -> list[int]:
        return tokenizers.encode(self.tokenizer, [text])[0].tolist()

    def encode_prompt(self, text: str) -> list[int]:
        return [self.first_token, *self.encode(text)]

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)

    def losses(self, row: Sequence[int]) -> Tensor:
        return losses(self.model, row)

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: Sequence[str] = ()) -> list[str]:
        sampling = Sampling(temperature=0, max_tokens=max_tokens, stop=tuple(stop))
        made = generate(self.model, prompts, sampling, tokenizer=self.tokenizer, end=self.first_token)
        return [completion.text for completion in made]


def losses(model: CausalLM, row: Sequence[int], piece: int = PIECE) -> Tensor:
    """`Model.losses`, in pieces of so many tokens."""

    def read(tokens: Tensor, wanted: Tensor, state: State | None) -> tuple[Tensor, State]:
        x, state = model.hidden(tokens, state)
        return -token_logprobs(model, x[0], wanted)[0], state

    return losses_in_pieces(read, row, piece, model.device)


@torch.inference_mode()
def losses_in_pieces(
    read: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], row: Sequence[int], piece: int, device: torch.device
) -> Tensor:
    """`Model.losses`, in pieces that go on from each other's state.

    read: tokens [1, n], the one after each [n], the state before them → the losses of the latter, the state after them.
    """
    tokens, state, found = torch.tensor(row, device=device), None, [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, len(row) - 1, piece):
        here, wanted = (part[start : start + piece] for part in (tokens[:-1], tokens[1:]))
        loss, state = read(here[None], wanted, state)
        found.append(loss.double().cpu())
    return torch.cat(found)
