"""A model as suites read it: a text as tokens, the losses of a row, what it writes on. Ours, over their state."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from gated_deltanet.data.tokenizer import encode, end_of_text
from gated_deltanet.models.generate import generate
from gated_deltanet.models.model import CausalLM, State
from gated_deltanet.models.sampling import Sampling

from .scoring import judge

PIECE = 4096  # tokens read at once


class Reader(Protocol):
    """begin: the token before a text. longest: tokens it can read at all, None: as many as there are."""

    begin: int
    longest: int | None

    def encode(self, text: str) -> list[int]:
        """Special tokens written out in it are text, and none is added."""
        ...

    def losses(self, row: Sequence[int]) -> Tensor:
        """−log p of each token but the first, [L − 1], float64."""
        ...

    def write_on(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
        """What it finds most probable after each prompt, up to so many tokens or to its end of text."""
        ...


class Ours:
    longest = None

    def __init__(self, model: CausalLM, tokenizer: Tokenizer):
        self.model, self.tokenizer, self.begin = model.eval(), tokenizer, end_of_text(tokenizer)

    def encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, [text])[0].tolist()

    def losses(self, row: Sequence[int]) -> Tensor:
        return losses(self.model, row)

    def write_on(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
        sampling = Sampling(temperature=0, max_tokens=tokens)
        return [x.text for x in generate(self.model, prompts, sampling, tokenizer=self.tokenizer, end=self.begin)]


def losses(model: CausalLM, row: Sequence[int], piece: int = PIECE) -> Tensor:
    """`Reader.losses`, in one pass."""

    def read(tokens: Tensor, wanted: Tensor, state: State | None) -> tuple[Tensor, State]:
        x, state = model.hidden(tokens, state)
        return -judge(model, x[0], wanted)[0], state

    return in_pieces(read, row, piece, model.head_weight.device)


@torch.inference_mode()
def in_pieces(
    read: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], row: Sequence[int], piece: int, device: torch.device
) -> Tensor:
    """`Reader.losses`, in pieces that go on from each other's state.

    read: tokens [1, n], the one after each [n], the state before them → the losses of the latter, the state after them.
    """
    tokens, state, found = torch.tensor(row, device=device), None, [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, len(row) - 1, piece):
        here, wanted = (part[start : start + piece] for part in (tokens[:-1], tokens[1:]))
        loss, state = read(here[None], wanted, state)
        found.append(loss.double().cpu())
    return torch.cat(found)
