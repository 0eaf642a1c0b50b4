"""How probable a model finds tokens: requests as packed rows, no padding, each common prefix read once.

First which requests begin alike, such as the options of a question, then how they are scored.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.models.model import CausalLM, State
from gated_deltanet.models.state import map_state

LEAST = 16  # tokens that joining a group must save
MEMBERS = 16  # of a group: they are read one after the other
SEQUENCES = 64  # of a batch: each holds a state, of 46 MB at 1.3 B parameters
PIECE = 1024  # positions whose logits are made at once


class Request(NamedTuple):
    """Tokens whose last `scored` ones are wanted, given all that come before: at least one."""

    tokens: list[int]
    scored: int

    @property
    def shareable(self) -> int:
        """Tokens that can be read for several: all before the one after which the first score is made."""
        return len(self.tokens) - self.scored - 1


class Group(NamedTuple):
    """Requests, by number, whose first `prefix` tokens are the same."""

    prefix: int
    members: list[int]


def alone(requests: Sequence[Request]) -> list[Group]:
    """Nothing shared."""
    return [Group(0, [i]) for i in range(len(requests))]


def shared(requests: Sequence[Request]) -> list[Group]:
    """Groups that save tokens. In order of their tokens, requests that begin alike are neighbours."""
    groups: list[Group] = []
    for i in sorted(range(len(requests)), key=lambda i: requests[i].tokens):
        if groups and (joined := join(groups[-1], i, requests)):
            groups[-1] = joined
        else:
            groups.append(Group(requests[i].shareable, [i]))
    return [group if len(group.members) > 1 else Group(0, group.members) for group in groups]


def join(group: Group, i: int, requests: Sequence[Request]) -> Group | None:
    """The group with request i, if that saves tokens: all its members then share only what i shares."""
    n, new = len(group.members), requests[i]
    prefix = min(group.prefix, new.shareable, overlap(requests[group.members[-1]].tokens, new.tokens))
    saved = n * prefix - (n - 1) * group.prefix
    return Group(prefix, [*group.members, i]) if saved >= LEAST and n < MEMBERS else None


def overlap(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def batches(requests: Sequence[Request], groups: Sequence[Group], tokens: int) -> Iterator[list[Group]]:
    """Groups of like length, the longest first, up to so many tokens read at once; those that share and those that do
    not apart. A group that is longer comes by itself."""
    for sharing in (True, False):
        chosen = [group for group in groups if bool(group.prefix) == sharing]
        batch, size = [], 0
        for group in sorted(chosen, key=lambda group: -at_once(group, requests)):
            n = at_once(group, requests)
            if batch and (size + n > tokens or len(batch) == SEQUENCES):
                yield batch
                batch, size = [], 0
            batch, size = [*batch, group], size + n
        if batch:
            yield batch


def at_once(group: Group, requests: Sequence[Request]) -> int:
    """Tokens the model reads in one go: the prefix, or what comes after it."""
    return max(group.prefix, *(len(requests[i].tokens) - 1 - group.prefix for i in group.members))


class Score(NamedTuple):
    logprob: float  # of all scored tokens together, in nats
    greedy: bool  # each was the most probable one


@torch.inference_mode()
def score(
    model: CausalLM, requests: Sequence[Request], *, share: bool = True, tokens: int = 4096
) -> Iterator[tuple[int, Score]]:
    """Each request's number and score, batch after batch of about so many tokens.

    share: read a prefix that requests have in common once, and go on from its state for each of them. It changes the
    speed, and of the scores nothing but how their sums are rounded.
    """
    groups = shared(requests) if share else alone(requests)
    for batch in batches(requests, groups, tokens):
        yield from score_batch(model, requests, batch)


def scores(model: CausalLM, requests: Sequence[Request]) -> list[Score]:
    """Of all requests, in their order."""
    found = dict(score(model, requests))
    return [found[i] for i in range(len(requests))]


def score_batch(model: CausalLM, requests: Sequence[Request], batch: list[Group]) -> Iterator[tuple[int, Score]]:
    """batch: groups that all share something, or all nothing.

    First the prefixes, then each group's first member, each one's second, …: all go on from the same state, which
    nothing changes, and no state is copied.
    """
    batch = sorted(batch, key=lambda group: -len(group.members))  # those with an n-th member are then the first ones
    state = prefix_state(model, requests, batch)
    for n in range(len(batch[0].members)):
        here = [group for group in batch if len(group.members) > n]
        numbers = [group.members[n] for group in here]
        rows = [requests[i] for i in numbers]
        yield from zip(numbers, score_rows(model, rows, here, first(state, len(here))), strict=True)


def first(state: State | None, n: int) -> State | None:
    """Of the first n sequences."""
    return map_state(lambda x: x[:n], state)


def prefix_state(model: CausalLM, requests: Sequence[Request], batch: list[Group]) -> State | None:
    """After each group's prefix; None if there is none."""
    if not batch[0].prefix:
        return None
    row, cu_seqlens = packed([requests[group.members[0]].tokens[: group.prefix] for group in batch], model)
    return model.hidden(row, cu_seqlens=cu_seqlens)[1]


def score_rows(model: CausalLM, requests: list[Request], groups: list[Group], state: State | None) -> Iterator[Score]:
    """One request of each group, from the state after its prefix."""
    row, cu_seqlens = packed([r.tokens[g.prefix : -1] for r, g in zip(requests, groups, strict=True)], model)
    x, _ = model.hidden(row, state, cu_seqlens=cu_seqlens, keep_state=False)
    counts = [request.scored for request in requests]
    ends = zip(cu_seqlens[1:].tolist(), counts, strict=True)
    at = torch.cat([torch.arange(end - n, end) for end, n in ends])
    targets = torch.tensor([token for request in requests for token in request.tokens[-request.scored :]])
    logprobs, greedy = token_logprobs(model, x[0, at.to(x.device)], targets.to(x.device))
    parts = zip(logprobs.split(counts), greedy.split(counts), strict=True)
    return (Score(float(logprob.sum()), bool(best.all())) for logprob, best in parts)


def packed(rows: Sequence[Sequence[int]], model: CausalLM) -> tuple[Tensor, Tensor]:
    """[1, T] and cu_seqlens, on the model's device."""
    device = model.device
    lengths = torch.tensor([len(row) for row in rows])
    row = torch.tensor([[token for row in rows for token in row]])
    return row.to(device), F.pad(lengths.cumsum(0), (1, 0)).to(device)


def token_logprobs(model: CausalLM, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """x: [T, d_model], targets: [T]. Each target's log probability, float64, and whether it is the most probable."""
    logprobs, greedy = [], []
    for part, wanted in zip(x.split(PIECE), targets.split(PIECE), strict=True):
        logits = model.logits(part).float()
        found = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)
        logprobs.append(found.double())
        greedy.append(logits.argmax(1) == wanted)
    return torch.cat(logprobs), torch.cat(greedy)
