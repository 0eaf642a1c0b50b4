"""The numbers of a cell that claims are judged by, computed from its sums (cells/measures.py)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .verdicts import ACCURACY, CONTEXT_GAIN, FLATNESS, LOG_PERPLEXITY, SPEED, Measure

Measures: TypeAlias = Mapping[str, Any]  # of one cell
AT = ("0.5", "1", "2")  # times the trained length, at which needles are judged: the paper's 2K to 8K
FAR = 14  # times it, from where on that is far
LEAST_GAIN = 0.1  # nats that a context must be worth to the best system


class Number(NamedTuple):
    title: str
    of: Callable[[Measures], float]
    measure: Measure
    better: int  # 1: more is better, −1: less is
    floor: float | None = None  # what the best system must reach for others to be told apart by it


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def per_token(parts: Sequence[Sequence[float]]) -> float:
    """parts: [total, n] each."""
    return sum(total for total, _ in parts) / sum(n for _, n in parts)


def needles_found(task: str) -> Number:
    def percent(m: Measures) -> float:
        return mean([100 * m["needles"][task][at]["right"] / m["needles"][task][at]["asked"] for at in AT])

    return Number(f"{task}, percent right", percent, ACCURACY, 1, floor=20)


def needles_loss(task: str) -> Number:
    """Which tells models apart long before they are right."""

    def loss(m: Measures) -> float:
        return mean([m["needles"][task][at]["loss"] for at in AT])

    return Number(f"{task}, loss of the value", loss, CONTEXT_GAIN, -1)


def validation(m: Measures) -> float:
    return per_token([document for text in m["validation"].values() for document in text])


def beyond(m: Measures) -> float:
    found = [stretches[1:] for stretches in m["positions"].values() if any(n for _, n in stretches[1:])]
    if not found:
        raise ValueError("no corpus has a document longer than the trained length")
    return mean([per_token(stretches) for stretches in found])


def kept(m: Measures) -> float:
    """By how much all that came before lowers the loss of the last stretches, against reading each by itself."""
    names = [name for name, (_, n) in m["far_afresh"].items() if n]
    if not names:
        raise ValueError(f"no corpus has a document longer than {FAR} times the trained length")
    return mean([per_token([m["far_afresh"][name]]) - per_token(m["positions"][name][FAR:]) for name in names])


def gain(of: str) -> Callable[[Measures], float]:
    return lambda m: mean([per_token(questions) for questions in m[of].values()])


def speed(m: Measures) -> float:
    return mean([math.log(each) for each in m["tokens_per_second"].values()])


def shortest(m: Measures) -> float:
    return math.log(next(iter(m["tokens_per_second"].values())))


def falling(m: Measures) -> float:
    first, *_, last = m["tokens_per_second"].values()
    return math.log(first / last)


TASK = Number("percent right", lambda m: m["accuracy"], ACCURACY, 1, floor=20)
VALIDATION = Number("validation loss", validation, LOG_PERPLEXITY, -1)
GAIN = Number("context gain", gain("gain"), CONTEXT_GAIN, 1, floor=LEAST_GAIN)
SEEN = Number("loss of pairs seen before", lambda m: per_token([m["pairs"]["seen"]]), LOG_PERPLEXITY, -1)
LONG_GAIN = Number("context gain, long documents", gain("long_gain"), CONTEXT_GAIN, 1, floor=LEAST_GAIN)
BEYOND = Number("loss beyond the trained length", beyond, LOG_PERPLEXITY, -1)
KEPT = Number("what all that came before is worth at 15 to 20 times the trained length", kept, CONTEXT_GAIN, 1)
TOKENS = Number("log of tokens per second, mean of all lengths", speed, SPEED, 1)
TOKENS_SHORT = Number("log of tokens per second, shortest rows", shortest, SPEED, 1)
FALLING = Number("log of the speed in the shortest rows ÷ in the longest", falling, FLATNESS, 1)
FLAT = Number("log of the speed in the longest rows ÷ in the shortest", lambda m: -falling(m), FLATNESS, 1)
