"""Speculative decoding: guesses at the next tokens, several of which a model then reads in one pass.

Logits have the bits of tokens read one by one, so greedy tokens are those without a draft. Tokens that are drawn have
the distribution they have without one (`accepted`), and with a draft of the prompt they are the same: there the model
draws each token itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .decoder import AHEAD
from .model import CausalLM
from .sampling import Sampling, draw, inverse_cdf, probabilities, uniform
from .session import Session
from .weights import packed_format, weight_bytes

GRAMS = range(8, 1, -1)  # tokens to find again, the longest first
COST = {"float32": 0.05, "bfloat16": 0.08, "int8": 0.05, "int4": 0.18}  # of a token more in a pass, in passes of one
HOPE, MEMORY = 0.7, 0.1  # how likely a guess is right: at first, and how much one guess changes that
PATIENCE = 15  # tokens without a guess before one is tried again

Choose: TypeAlias = Callable[[Tensor], int]  # of logits [1, vocab_size] a token: the next at each call


class PromptDraft:
    """What followed the last tokens where they stood before, in the prompt or in what was written since."""

    cost = 0.0  # of a guess, in passes of the model

    def __init__(self, prompt: Sequence[int]):
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}  # where an n-gram ended last
        for token in prompt:
            self.push(token)

    def push(self, token: int) -> None:
        for n in GRAMS:
            if n <= len(self.tokens):
                self.after[tuple(self.tokens[-n:])] = len(self.tokens)
        self.tokens.append(token)

    def guess(self, most: int, choose: Choose) -> list[int]:
        """At most so many tokens, and no more than were found again."""
        for n in GRAMS:
            at = self.after.get(tuple(self.tokens[-n:]))
            if n <= len(self.tokens) and at is not None:
                return self.tokens[at : at + min(n, most)]
        return []


class ModelDraft:
    """What a smaller model says."""

    def __init__(self, model: CausalLM, prompt: Sequence[int], cost: float = 0.0):
        self.session, self.cost = Session(model), cost
        self.new = list(prompt)  # what it has not read

    def push(self, token: int) -> None:
        self.new.append(token)

    def guess(self, most: int, choose: Choose) -> list[int]:
        logits, self.new = self.session.read(torch.tensor([self.new])), []
        guesses: list[int] = []
        while len(guesses) < min(most, self.session.most_ahead):
            guesses.append(choose(logits if not guesses else self.session.look(guesses)[-1:]))
        return guesses


class Ahead:
    """A session that draws and reads a token at a time, and passes over the weights only where a guess was wrong."""

    def __init__(
        self,
        session: Session,
        draft: PromptDraft | ModelDraft,
        sampling: Sampling,
        generator: torch.Generator,
        seen: Tensor | None,
    ):
        """seen: as `draw` takes it, and kept up to date by the caller."""
        self.session, self.draft, self.left = session, draft, sampling.max_tokens
        self.sampling, self.generator, self.seen = sampling, generator, seen
        self.guesses: list[int] = []  # looked at, and not yet right or wrong
        self.drawn_from: list[Tensor] = []  # each of them, [1, vocab_size], if they were drawn
        self.logits = torch.empty(0)  # behind each of them
        self.cost = draft.cost + COST[str(packed_format(session.model))]
        self.right = HOPE  # how likely a guess is right, by those before
        self.waited = 0  # tokens for which nothing was guessed

    def draw(self, logits: Tensor) -> Tensor:
        """As `sampling.draw`: [1]."""
        if not self.drawn_from or not self._guessed():
            return draw(logits, self.sampling, [self.generator], self.seen)
        p, q = probabilities(logits, self.sampling, self.seen), self.drawn_from[0]
        return torch.tensor([accepted(self.guesses[0], p, q, *uniform([self.generator] * 2).tolist())])

    def read(self, token: Tensor) -> Tensor:
        """As `Session.read`. token: [1], which was drawn."""
        self.left -= 1
        self.draft.push(int(token))
        if self._guessed():
            right, self.drawn_from = self.guesses.pop(0) == int(token), self.drawn_from[1:]
            self.right += MEMORY * (right - self.right)
            if right:
                return self._take()
        self._guess(min(self._worthwhile(), self.left, self.session.most_ahead - 1))
        if not self.guesses:
            return self.session.read(token[:, None])
        self.logits = self.session.look([int(token), *self.guesses])
        return self._take()

    def _guessed(self) -> bool:
        """Whether there is a guess at the next token, and the session was not used otherwise meanwhile."""
        return bool(self.guesses) and self.session.ahead == len(self.guesses)

    def _guess(self, most: int) -> None:
        self.drawn_from, seen = [], None if self.seen is None else self.seen.clone()

        def choose(logits: Tensor) -> int:
            if self.sampling.temperature == 0:
                token = draw(logits, self.sampling, [], seen)
            else:
                self.drawn_from.append(probabilities(logits, self.sampling, seen))
                token = inverse_cdf(self.drawn_from[-1], uniform([self.generator]))
            if seen is not None:
                seen[0, token] = True
            return int(token)

        self.guesses = self.draft.guess(most, choose) if most > 0 else []
        self.waited = 0 if most > 0 else self.waited + 1

    def _take(self) -> Tensor:
        self.session.take(1)
        logits, self.logits = self.logits[:1], self.logits[1:]
        return logits

    def _worthwhile(self) -> int:
        """How many guesses give most tokens for the time: 1 + r + … + rⁿ for 1 + n cost, if each is right with r."""
        tokens, best, count = 1.0, 1.0, 0
        for n in range(1, AHEAD):
            tokens += self.right**n
            if tokens / (1 + n * self.cost) > best:
                best, count = tokens / (1 + n * self.cost), n
        return count if count or self.waited < PATIENCE else 1


def accepted(guess: int, p: Tensor, q: Tensor, first: float, second: float) -> int:
    """A token distributed as p: the guess, which was drawn from q, with probability min(1, p / q), or one of those that
    are more probable in p than in q (Leviathan et al., 2023).

    p, q: [1, vocab_size]. first, second: random numbers in [0, 1).
    """
    if first * float(q[0, guess]) < float(p[0, guess]):
        return guess
    rest = (p - q).clamp(min=0)
    return int(inverse_cdf(rest if rest.any() else p, torch.tensor([second], dtype=torch.float64)))


def make(draft: Any, session: Session, prompt: Sequence[int]) -> PromptDraft | ModelDraft:
    """The draft that `generate` was given, for a session that goes on from the prompt."""
    check(draft, session.model)
    if session.keep:
        raise ValueError(f"draft: the session has keep = {session.keep}, expected 0: guesses are not kept one by one")
    return PromptDraft(prompt) if isinstance(draft, str) else ModelDraft(draft, prompt, share(draft, session.model))


def share(draft: CausalLM, model: CausalLM) -> float:
    """About what a pass of the draft costs, in passes of the model: of the weights, and of the calls if it is small."""
    return max(weight_bytes(draft) / weight_bytes(model), draft.config.n_layers / model.config.n_layers)


def check(draft: Any, model: CausalLM) -> None:
    """Whether it is a draft for the model."""
    if draft != "prompt" and not isinstance(draft, CausalLM):
        found = repr(draft) if isinstance(draft, str) else f"a {type(draft).__name__}"
        raise ValueError(f'draft is {found}, expected a model or "prompt"')
    models = {"the model": model} | ({} if isinstance(draft, str) else {"the draft": draft})
    for name, each in models.items():
        if not Session(each).most_ahead:
            expected = (
                'packed weights, as load(folder, weights="float32") has, Gated DeltaNet and attention layers only'
            )
            raise ValueError(
                f"draft: {name} cannot read several tokens at once, expected {expected}, and native kernels"
            )
    if isinstance(draft, CausalLM) and draft.config.vocab_size != model.config.vocab_size:
        sizes = f"{draft.config.vocab_size} tokens, expected the model's {model.config.vocab_size}"
        raise ValueError(f"draft: its vocabulary is of {sizes}")
