"""Hugging Face's models as the suites use them. Needs transformers: `pip install 'gated-deltanet[hf]'`."""

from collections.abc import Sequence
from inspect import signature
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from .model import losses_in_pieces

PIECE = 512  # tokens read at once: their logits are all in memory
CACHES = ("past_key_values", "cache_params", "state")  # what models call the memory of what they have read
PROBE = "Ann has read this page before, and whoever asks her what was on it will hear all of it again."


def open_hf_model(checkpoint: str, device: str, name: str = "model", identity: str | None = None) -> "HFModel":
    """By its folder or its name on the hub."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
    return HFModel(model, AutoTokenizer.from_pretrained(checkpoint), device, name, identity)


class HFModel:
    """A model of transformers with its tokenizer as a `Model`."""

    def __init__(
        self, model: Any, tokenizer: Any, device: str = "cpu", name: str = "model", identity: str | None = None
    ):
        self.name, self.identity, self.tokenizer = name, identity, tokenizer
        self.first_token, self.context_length = first_token(tokenizer), context_length(model, tokenizer)
        self.max_positions = max_positions(model)
        self.model = model.to(device).eval()
        self.model.generation_config = greedy(model, tokenizer, self.first_token)
        self.cache = next((name for name in CACHES if name in signature(model.forward).parameters), None)
        self.piece = PIECE if self.cache and self._carries_its_cache() else None  # None: all at once

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]

    def encode_prompt(self, text: str) -> list[int]:
        return self.tokenizer(text, verbose=False)["input_ids"]

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)

    def losses(self, row: Sequence[int]) -> Tensor:
        return losses_in_pieces(self._read, row, self.piece or len(row), self.model.device)

    @torch.inference_mode()
    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int, stop: Sequence[str] = ()) -> list[str]:
        """Prompts of one length together: not every model knows what padding is."""
        found: dict[int, str] = {}
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        for length, some in groupby(order, key=lambda i: len(prompts[i])):
            numbers = list(some)
            rows = torch.tensor([prompts[i] for i in numbers], device=self.model.device)

            def stopped(tokens: Tensor, _: Any, length: int = length) -> Tensor:
                texts = self._decode_made(tokens[:, length:])
                return torch.tensor([any(each in text for each in stop) for text in texts], device=tokens.device)

            given: dict[str, Any] = {"stopping_criteria": [stopped]} if stop else {}
            made = self.model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=max_tokens, **given)
            found |= zip(numbers, self._decode_made(made[:, length:]), strict=True)
        return [before(found[i], stop) for i in range(len(prompts))]

    def _decode_made(self, tokens: Tensor) -> list[str]:
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _read(self, tokens: Tensor, wanted: Tensor, cache: Any) -> tuple[Tensor, Any]:
        given = {self.cache: cache, "use_cache": True} if self.cache else {}
        output = self.model(input_ids=tokens, **given)
        return F.cross_entropy(output.logits[0].float(), wanted, reduction="none"), output.get(self.cache)

    def _carries_its_cache(self) -> bool:
        """Whether pieces give what the whole gives: some models forget their cache where several tokens follow it."""
        row = [self.first_token, *self.encode(PROBE)]
        sizes = (len(row), 1 + len(row) // 3)
        whole, pieces = (losses_in_pieces(self._read, row, size, self.model.device) for size in sizes)
        tolerance = max(1e-4, 4 * torch.finfo(self.model.dtype).eps)
        return torch.allclose(whole, pieces, rtol=tolerance, atol=tolerance)


def before(text: str, stop: Sequence[str]) -> str:
    """What comes before the first of the stop strings."""
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=None)]


def first_token(tokenizer: Any) -> int:
    """As lm-eval chooses it."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ValueError(
        "the tokenizer has no token for the beginning or the end of a text, expected bos_token or eos_token"
    )


def context_length(model: Any, tokenizer: Any) -> int | None:
    """As lm-eval finds it: what the config names, else the tokenizer."""
    config = model.config.get_text_config()
    named = (getattr(config, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx"))
    found = next((length for length in named if length is not None), tokenizer.model_max_length)
    return None if found > 1e9 else int(found)  # transformers' "unset" is 1e30


def max_positions(model: Any) -> int | None:
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


def greedy(model: Any, tokenizer: Any, first: int) -> GenerationConfig:
    """Of the model's own settings, which may draw or penalise, only where a text ends: there, or where its tokenizer
    says, as in lm-eval."""
    own = model.generation_config.eos_token_id if model.generation_config else None
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id} - {None}
    padding = first if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return GenerationConfig(do_sample=False, eos_token_id=sorted(ends) or None, pad_token_id=padding)
