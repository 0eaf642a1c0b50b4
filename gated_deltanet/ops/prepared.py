"""What an op finds out about its inputs once for each layout of them, not in every call."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor, get_num_threads, is_grad_enabled

from . import native
from .library import watched

KEPT = 256  # layouts of an op: more than a program needs, unless lengths vary

Inputs = TypeVar("Inputs", bound=tuple)  # a NamedTuple: what an op was given, by name
Result = TypeVar("Result")


def prepared(prepare: Callable[[Inputs], Callable[[Inputs], Result]]) -> Callable[[Inputs], Result]:
    """The function prepare(inputs)(inputs), prepared once for all inputs of a layout.

    A layout is everything but the values in tensors. prepare(inputs) checks the inputs, chooses a form, prepares a
    kernel's arguments, and returns run. run(inputs) is called with these inputs, and later with others of the same
    layout: it may hold no tensor of the first ones, and has to look at values itself.
    """
    runs: dict[Hashable, Callable[[Inputs], Result]] = {}

    def call(inputs: Inputs) -> Result:
        if watched():
            return prepare(inputs)(inputs)
        grad = is_grad_enabled()
        layout = [native.loaded(), get_num_threads(), grad]
        for x in inputs:  # here and not in a function: that would take 0.1 µs for each input
            if isinstance(x, Tensor):
                where, wanted = x.is_cpu or x.device, grad and x.requires_grad
                layout.append((type(x), x.shape, x.dtype, where, x.is_contiguous(), x.is_neg(), wanted))
            else:
                layout.append((bool, x) if x is True or x is False else x)  # True equals 1, which may be allowed
        key = tuple(layout)
        try:
            run = runs.get(key)
        except TypeError:  # what cannot be hashed is nothing an op takes: prepare will say so
            return prepare(inputs)(inputs)
        if run is None:
            run = prepare(inputs)
            if len(runs) >= KEPT:
                runs.clear()
            runs[key] = run
        return run(inputs)

    return call
