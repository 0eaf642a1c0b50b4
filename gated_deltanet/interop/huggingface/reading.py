"""How a padded batch is read: what padding is, what each column sees, what goes in and out of every layer."""

from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.layers.attention import AttentionMixer
from gated_deltanet.models.model import CausalLM, State
from gated_deltanet.models.state import pack

from .eager import Eager


class Reading(NamedTuple):
    """What came of it. x: [B, L, d_model], what the head reads; inputs: the same of each layer, if asked for."""

    x: Tensor
    state: State
    inputs: tuple[Tensor, ...]


def embed(model: CausalLM, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """[B, L, d_model]; whatever stands at padding is never looked at. tokens, mask: [B, L]."""
    return model.embed(tokens) if mask is None else columns(model.embed(pack(tokens, mask)[0]), mask)


def read(
    model: CausalLM,
    x: Tensor,
    mask: Tensor | None,
    state: State | None = None,
    *,
    keep_state: bool = True,
    keep_inputs: bool = False,
    eager: Eager | None = None,
) -> Reading:
    """`CausalLM.hidden` of a padded batch that is embedded, x: [B, L, d_model]; mask: [B, L].

    Gradients flow through the inputs that are kept. eager: attention in all layers that have some.
    """
    if state is not None:
        model.check_state(state)
    cu_seqlens = None if mask is None else F.pad(mask.sum(1).cumsum(0), (1, 0))
    x, inputs, states = rows(x, mask), [], []
    for block, before in zip(model.layers, state or [None] * len(model.layers), strict=True):
        if keep_inputs:
            inputs.append(columns(x, mask))
            x = rows(inputs[-1], mask)
        mixer = partial(block.mixer, attend=eager) if eager and isinstance(block.mixer, AttentionMixer) else None
        x, after = block(x, before, cu_seqlens=cu_seqlens, keep_state=keep_state, mixer=mixer)
        states.append(after)
    return Reading(columns(model.norm(x), mask), tuple(states), tuple(inputs))


def rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """The tokens of a padded batch in one row: [B, L, …] -> [1, T, …]. No mask: as they are."""
    return x if mask is None else x[mask][None]


def columns(x: Tensor, mask: Tensor | None) -> Tensor:
    """Of each column, the packed token there or before it: [1, T, …] -> [B, L, …]. No mask: nothing was packed."""
    if mask is None:
        return x
    latest = mask.flatten().cumsum(0).sub(1).clamp(min=0)
    return x[0, latest].unflatten(0, mask.shape)


def mask_of(shape: tuple[int, int], mask: Tensor | None) -> Tensor | None:
    """[B, L], true at tokens; None if nothing is padding. shape: B, L. mask: [B, at least L]."""
    if mask is None:
        return None
    B, L = shape
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
