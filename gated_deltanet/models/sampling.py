"""From logits to the next token. Each function maps logits [N, vocab_size] to such logits; −inf is never drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gated_deltanet.fields import check_positive, check_sizes

LARGEST_SEED = 2**63 - 1  # row i draws with seed + i, and torch takes 64 bits


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and when to stop. The filters apply in the order of the fields, as in transformers."""

    repetition_penalty: float = 1.0  # logits of tokens seen before are divided by it, or multiplied if negative
    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None  # only the k most probable tokens
    top_p: float = 1.0  # only the most probable tokens that reach this probability together
    min_p: float = 0.0  # only tokens at least this times as probable as the most probable one
    seed: int = 0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()  # the text ends before any of these; a list becomes a tuple

    def __post_init__(self):
        check_positive(self, "repetition_penalty")
        check_range(self, "temperature", float("inf"))
        check_sizes(self, "top_k", "max_tokens")
        check_positive(self, "top_p", most=1)
        check_range(self, "min_p", 1)
        check_sizes(self, "seed", least=0)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"Sampling: seed is {self.seed}, expected at most {LARGEST_SEED}")
        if isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"Sampling: stop is {self.stop!r}, expected a tuple of strings that are not empty")


def check_range(config: Sampling, name: str, most: float) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        limit = "" if most == float("inf") else f" and at most {most:g}"
        raise ValueError(f"Sampling: {name} is {value!r}, expected at least 0{limit}")


def draw(logits: Tensor, sampling: Sampling, generators: Sequence[torch.Generator], seen: Tensor | None) -> Tensor:
    """One token for each sequence, [N]. Greedy takes nothing from the generators, one for each sequence.

    logits: [N, vocab_size]. seen: [N, vocab_size], true for tokens the repetition penalty is for; None: none.
    """
    logits = penalised(logits, sampling, seen)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    return inverse_cdf(warped(logits, sampling).softmax(-1), uniform(generators).to(logits.device))


def probabilities(logits: Tensor, sampling: Sampling, seen: Tensor | None) -> Tensor:
    """What `draw` draws from, [N, vocab_size], if not greedily."""
    return warped(penalised(logits, sampling, seen), sampling).softmax(-1)


def uniform(generators: Sequence[torch.Generator]) -> Tensor:
    """A number in [0, 1) of each: [N] float64."""
    return torch.stack([torch.rand((), dtype=torch.float64, generator=g) for g in generators])


def penalised(logits: Tensor, sampling: Sampling, seen: Tensor | None) -> Tensor:
    logits = logits.float()
    if bool(logits.isnan().any()):
        raise ValueError("logits hold NaN, expected numbers: there is nothing to draw from")
    return logits if seen is None else repetition_penalty(logits, seen, sampling.repetition_penalty)


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature and every filter that would leave something out."""
    logits = logits / sampling.temperature
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p < 1:
        logits = top_p(logits, sampling.top_p)
    return min_p(logits, sampling.min_p) if sampling.min_p > 0 else logits


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative probability first exceeds uniform: [N], in [0, 1). probabilities: [N, V]."""
    cdf = probabilities.double().cumsum(-1)
    cdf = cdf / cdf[:, -1:]  # ends in exactly 1, which no uniform number reaches
    return torch.searchsorted(cdf, uniform[:, None], right=True)[:, 0]


def repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Less probable if seen before (Keskar et al., 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest, and those equal to the last of them."""
    least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest tokens, most probable first, that together reach the probability p (Holtzman et al., 2020)."""
    probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    left_out = (before >= p).scatter(-1, order, before >= p)
    return logits.masked_fill(left_out, -torch.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Those with at least p times the probability of the most probable one."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), -torch.inf)
