"""What an op finds out about its arguments once for each layout of them, not in every call."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor, get_num_threads, is_grad_enabled

from . import native
from .library import watched

KEPT = 256  # plans of an op: more than a program needs, unless lengths vary

R = TypeVar("R")


def planned(plan: Callable[..., Callable[..., R]]) -> Callable[..., R]:
    """The function plan(*inputs)(*inputs), with one plan for all inputs of a layout.

    A layout is everything but the values in tensors. plan checks the inputs, chooses a form, prepares a kernel's
    arguments, and returns what to run, which may hold no input and has to look at values itself.
    """
    plans: dict[Hashable, Callable[..., R]] = {}

    def call(*inputs: Any) -> R:
        if watched():
            return plan(*inputs)(*inputs)
        grad = is_grad_enabled()
        layout = (native.loaded(), get_num_threads(), grad, *[layout_of(x, grad) for x in inputs])
        try:
            run = plans.get(layout)
        except TypeError:  # what cannot be hashed is nothing an op takes: the plan will say so
            return plan(*inputs)(*inputs)
        if run is None:
            run = plan(*inputs)
            if len(plans) >= KEPT:
                plans.clear()
            plans[layout] = run
        return run(*inputs)

    return call


def layout_of(x: Any, grad: bool) -> Hashable:
    """A tensor's, or what is not one."""
    if not isinstance(x, Tensor):
        return x
    where = x.is_cpu or x.device
    return type(x), x.shape, x.dtype, where, x.is_contiguous(), x.is_neg(), grad and x.requires_grad
