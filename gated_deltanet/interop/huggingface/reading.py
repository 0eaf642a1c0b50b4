"""How a padded batch is read: what padding is, what each column sees, what goes in and out of every layer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from gated_deltanet.models.model import CausalLM, State
from gated_deltanet.models.state import pack


def read(
    model: CausalLM, tokens: Tensor, mask: Tensor | None, state: State | None, *, keep_state: bool = True
) -> tuple[Tensor, State]:
    """`CausalLM.hidden` of a padded batch. tokens, mask: [B, L] -> [B, L, d_model]."""
    if mask is None:
        return model.hidden(tokens, state, keep_state=keep_state)
    row, cu_seqlens = pack(tokens, mask)
    x, state = model.hidden(row, state, cu_seqlens=cu_seqlens, keep_state=keep_state)
    return columns(x, mask), state


def columns(x: Tensor, mask: Tensor | None) -> Tensor:
    """Of each column, the packed token there or before it: [1, T, …] -> [B, L, …]. No mask: nothing was packed."""
    if mask is None:
        return x
    latest = mask.flatten().cumsum(0).sub(1).clamp(min=0)
    return x[0, latest].unflatten(0, mask.shape)


def mask_of(tokens: Tensor, mask: Tensor | None) -> Tensor | None:
    """[B, L], true at tokens; None if nothing is padding. mask: [B, at least L]."""
    if mask is None:
        return None
    B, L = tokens.shape
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] != B or mask.shape[1] < L:
        found = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask is {found}, expected [{B}, at least {L}]")
    mask = mask[:, mask.shape[1] - L :].bool()
    return None if bool(mask.all()) else mask


def check_positions(positions: Tensor | None, mask: Tensor | None) -> None:
    """The model counts by itself, so positions [B or 1, L] may only say the same: one more from token to token."""
    if positions is None:
        return
    odd = positions.diff(dim=-1) != 1
    if mask is not None:
        odd = odd & mask[:, 1:] & mask[:, :-1]
    if bool(odd.any()):
        raise ValueError("position_ids begin anew or leap within a row, expected one document a row, padded if need be")


@contextmanager
def inputs_of(layers: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """What each of the layers reads meanwhile, in the order of their calls."""
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
