"""Fair times on a noisy machine: contestants take turns, and each is judged by its best."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Item = TypeVar("Item")
TURN = 0.02  # seconds a turn of `race` lasts at least
PAUSE = 0.01  # seconds before it, in which the idle threads of the one before fall asleep


def race(
    contestants: Mapping[Name, Callable[[], object]], seconds: float, wait: Callable[[], object] = lambda: None
) -> dict[Name, float]:
    """The least seconds a call of each. They take turns, at least two, until `seconds` for each of them have passed.

    A turn of a quick contestant is many calls, timed together, so that the clock resolves them. wait: until a GPU has
    done all it was told.
    """
    best = {name: per_call(call, 1, wait) for name, call in contestants.items()}  # slow, it warms up: the turns beat it
    start, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - start < seconds * len(contestants):
        for name, call in contestants.items():
            time.sleep(PAUSE)
            best[name] = min(best[name], per_call(call, calls=max(1, round(TURN / best[name])), wait=wait))
        rounds += 1
    return best


def per_call(call: Callable[[], object], calls: int, wait: Callable[[], object] = lambda: None) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls


def turns(
    items: Sequence[Item], rounds: int, seconds: float, track: Callable[[Sequence], Iterable[Any]] = iter
) -> Iterator[Item]:
    """The items, all of them `rounds` times over; a round that would not end within `seconds` is not begun, but for
    the first. track: wraps the turns to show progress."""
    start = time.perf_counter()
    for turn, item in enumerate(track([*items] * rounds)):
        done, place = divmod(turn, len(items))
        if done and not place and (time.perf_counter() - start) * (done + 1) / done > seconds:
            return
        yield item
