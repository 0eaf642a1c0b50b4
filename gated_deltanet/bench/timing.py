"""Fair times on a noisy machine: contestants take turns, and each is judged by its best."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)


def best_seconds(
    contestants: Mapping[Name, Callable[[], object]], rounds: int, track: Callable[[Sequence], Iterable[Any]] = iter
) -> dict[Name, float]:
    """The least time of each over `rounds` turns, after one to warm up. track: wraps the turns to show progress."""
    best: dict[Name, float] = {}
    for turn, name in enumerate(track([*contestants] * (1 + rounds))):
        start = time.perf_counter()
        contestants[name]()
        seconds = time.perf_counter() - start
        if turn >= len(contestants):
            best[name] = min(seconds, best.get(name, seconds))
    return best
