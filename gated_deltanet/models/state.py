"""A model's state, one a layer, each a NamedTuple of tensors whose first axis counts sequences; and padded batches as
sequences packed in one row, so that no mixer ever sees padding."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
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


def pack(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens [B, L] where mask [B, L] is true (left-, right- or not padded), as a row [1, T] and its cu_seqlens.

    The state that comes out has one sequence for each of the B rows.
    """
    if mask.shape != tokens.shape:
        raise ValueError(f"mask is {list(mask.shape)}, expected {list(tokens.shape)}, as tokens is")
    mask = mask.bool()
    return tokens[mask][None], F.pad(mask.sum(1).cumsum(0), (1, 0))


def unpack(row: Tensor, mask: Tensor) -> Tensor:
    """[1, T, …] -> [B, L, …], zero where mask [B, L] is false: undoes `pack` for what a model makes of the tokens."""
    if row.shape[0] != 1 or row.shape[1] != int(mask.sum()):
        raise ValueError(f"row is {list(row.shape)}, expected [1, T, …] with T = {int(mask.sum())}, as mask has tokens")
    padded = row.new_zeros(*mask.shape, *row.shape[2:])
    padded[mask.bool()] = row[0]
    return padded


def last(row: Tensor, cu_seqlens: Tensor) -> Tensor:
    """What belongs to each sequence's last token: [1, T, …] -> [N, …]. No sequence may be empty."""
    if bool((cu_seqlens.diff() < 1).any()):
        raise ValueError(f"cu_seqlens is {cu_seqlens.tolist()}, expected at least one token in every sequence")
    return row[0, cu_seqlens[1:].to(row.device, torch.int64) - 1]
