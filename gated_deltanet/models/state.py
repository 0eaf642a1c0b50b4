"""A model's state: one state a layer, each a NamedTuple of tensors whose first axis counts sequences."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def map_state(function: Callable[..., Tensor], *states: Any) -> Any:
    """The same structure with function(x, …) for every tensor x; what is None stays None.

    `map_state(lambda x: x[rows], state)` takes some sequences; `map_state(lambda *x: torch.cat(x), *states)` joins.
    """
    first = states[0]
    if first is None or isinstance(first, Tensor):
        return None if first is None else function(*states)
    parts = [map_state(function, *part) for part in zip(*states, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor of a state."""
    if isinstance(state, Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from tensors(part)
