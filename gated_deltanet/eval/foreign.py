"""Hugging Face's causal language models as suites read them. Needs transformers: `pip install 'gated-deltanet[hf]'`."""

from collections.abc import Sequence
from inspect import signature
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from .checkpoints import check_tokenizer
from .readers import in_pieces

PIECE = 512  # tokens read at once: their logits are all in memory
CACHES = ("past_key_values", "cache_params", "state")  # what models call the memory of what they have read
PROBE = "Ann has read this page before, and whoever asks her what was on it will hear all of it again."


def open_foreign(checkpoint: str, device: str) -> "Foreign":
    """By its folder or its name on the hub."""
    check_tokenizer(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
    return Foreign(model, AutoTokenizer.from_pretrained(checkpoint), device)


class Foreign:
    def __init__(self, model: Any, tokenizer: Any, device: str = "cpu"):
        self.tokenizer, self.begin, self.longest = tokenizer, first_token(tokenizer), positions(model)
        self.model = model.to(device).eval()
        self.model.generation_config = greedy(model, tokenizer, self.begin)
        self.cache = next((name for name in CACHES if name in signature(model.forward).parameters), None)
        self.piece = PIECE if self.cache and self._goes_on() else None  # None: all at once

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]

    def losses(self, row: Sequence[int]) -> Tensor:
        return in_pieces(self._read, row, self.piece or len(row), self.model.device)

    @torch.inference_mode()
    def write_on(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
        """Prompts of one length together: not every model knows what padding is."""
        found = []
        for length, some in groupby(prompts, len):
            rows = torch.tensor(list(some), device=self.model.device)
            made = self.model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=tokens)
            found += self.tokenizer.batch_decode(
                made[:, length:], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return found

    def _read(self, tokens: Tensor, wanted: Tensor, cache: Any) -> tuple[Tensor, Any]:
        given = {self.cache: cache, "use_cache": True} if self.cache else {}
        output = self.model(input_ids=tokens, **given)
        return F.cross_entropy(output.logits[0].float(), wanted, reduction="none"), output.get(self.cache)

    def _goes_on(self) -> bool:
        """Whether pieces give what the whole gives: some models forget their cache where several tokens follow it."""
        row = [self.begin, *self.encode(PROBE)]
        pieces = (in_pieces(self._read, row, piece, self.model.device) for piece in (len(row), 1 + len(row) // 3))
        tolerance = max(1e-4, 4 * torch.finfo(self.model.dtype).eps)
        return torch.allclose(*pieces, rtol=tolerance, atol=tolerance)


def first_token(tokenizer: Any) -> int:
    """As lm-eval chooses it."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ValueError(
        "the tokenizer has no token for the beginning or the end of a text, expected bos_token or eos_token"
    )


def positions(model: Any) -> int | None:
    """How many it has, if it refuses to read on: a table of them ends, rotary ones do not.

    On the CPU, where an index that is too large is an error that can be caught.
    """
    named = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if named is None or "position_ids" not in signature(model.forward).parameters:
        return None
    try:
        with torch.inference_mode():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), position_ids=torch.full((1, 1), named))
    except (IndexError, RuntimeError):
        return named
    return None


def greedy(model: Any, tokenizer: Any, begin: int) -> GenerationConfig:
    """Of the model's own settings, which may draw or penalise, only where a text ends."""
    own = model.generation_config.eos_token_id if model.generation_config else None
    padding = begin if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ends = tokenizer.eos_token_id if own is None else own
    return GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=padding)
