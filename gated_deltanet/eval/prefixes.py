"""What requests have in common: tokens that several begin with, such as the options of a question, are read once."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

LEAST = 16  # tokens that joining a group must save
MEMBERS = 16  # of a group: they are read one after the other
SEQUENCES = 64  # of a batch: each holds a state, of 46 MB at 1.3 B parameters


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


def read(group: Group, requests: Sequence[Request]) -> int:
    """How many tokens the model reads in all: the prefix once, then of each request all but the last."""
    return group.prefix + sum(len(requests[i].tokens) - 1 - group.prefix for i in group.members)
