"""A cache of transformers whose recurrent states can go back, so that guessed tokens can be taken back exactly.

transformers refuses assisted generation for recurrent models: a state that has read too much cannot be cropped. While
a cache records its past (`activate_past_recording`, which generate() calls), we keep what the rule read since the last
crop and the state before it, and read again what is left. Per token that is about as much as the convolution's inputs,
which transformers keeps itself.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .functions import READING, Reading


def update_recurrent_state(own: Callable) -> Callable:
    """Of a cache's layer: takes the new state as it is, where transformers copies it, and records how it came about."""

    @wraps(own)
    def update(layer: Any, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        reading = vars(recurrent_states).pop(READING, None)
        if reading is None:
            return own(layer, recurrent_states, state_idx, **kwargs)
        if not layer.is_recurrent_states_initialized[state_idx]:
            layer.lazy_initialization(recurrent_states=recurrent_states, state_idx=state_idx)
        if layer.record_past:
            readings = vars(layer).setdefault(READING, {}).setdefault(state_idx, [])
            readings.append(reading._replace(state=readings[0].state) if readings else reading)  # one state, not many
        layer.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    return update


def crop(own: Callable) -> Callable:
    """Of a cache's layer: takes back the convolutions' inputs, as transformers does, and the recurrent states."""

    @wraps(own)
    def crop(layer: Any, tokens_to_remove: int) -> None:
        if not layer.record_past or tokens_to_remove > 0:
            return own(layer, tokens_to_remove)  # which says what is wrong
        recorded = vars(layer).pop(READING, {})
        for i, x in layer.conv_states.items():
            if x is not None:
                end = x.shape[-1] + tokens_to_remove
                layer.conv_states[i] = x[..., max(end - layer.conv_kernel_size[i], 0) : end]
        for i, state in layer.recurrent_states.items():
            if state is not None and tokens_to_remove:
                layer.recurrent_states[i] = state_before(recorded.get(i, ()), -tokens_to_remove)

    return crop


def state_before(readings: Sequence[Reading], n: int) -> Tensor:
    """The state before the last n tokens of what was read in turn."""
    L = sum(reading.tokens[0].shape[1] for reading in readings)
    if n > L:
        raise ValueError(f"crop: {n} tokens to take back from a recurrent state, expected at most the {L} recorded")
    if n == L:
        return readings[0].state
    together = (torch.cat(parts, 1) for parts in zip(*(reading.tokens for reading in readings), strict=True))
    return readings[0]._replace(tokens=tuple(x[:, : L - n] for x in together)).run()[1]


def refuses_guesses() -> property:
    """What transformers asks before assisted generation: is a model stateful? On a CPU its cache can go back."""
    return property(lambda model: model.device.type != "cpu")
