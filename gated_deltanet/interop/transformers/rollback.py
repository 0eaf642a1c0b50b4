"""A cache of transformers whose recurrent states can go back, so that guessed tokens can be taken back exactly.

transformers refuses assisted generation for recurrent models: a state that has read too much cannot be cropped. While
a cache records its past (`activate_past_recording`, which generate() calls), we keep what the rule read since the last
crop and the state before it, and read again what is left. Per token that is about as much as the convolution's inputs,
which transformers keeps itself.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .functions import READING, Reading


class Record(NamedTuple):
    """What was read in turn since the last crop, and the state after it."""

    readings: list[Reading]
    after: Tensor


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
            records = vars(layer).setdefault(READING, {})
            records[state_idx] = goes_on(records.get(state_idx), reading, recurrent_states)
        layer.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    return update


def goes_on(record: Record | None, reading: Reading, after: Tensor) -> Record:
    """The record with one more reading; a new one if it was not read from where the record ends, as after a reset."""
    if record is None or reading.state is not record.after:
        return Record([reading], after)
    record.readings.append(reading._replace(state=record.readings[0].state))  # one state is kept, not many
    return Record(record.readings, after)


def crop(own: Callable) -> Callable:
    """Of a cache's layer: takes back the convolutions' inputs, as transformers does, and the recurrent states."""

    @wraps(own)
    def crop(layer: Any, tokens_to_remove: int) -> None:
        if not layer.record_past or tokens_to_remove > 0:
            return own(layer, tokens_to_remove)  # which says what is wrong
        records = vars(layer).pop(READING, {})
        for i, x in layer.conv_states.items():
            if x is not None:
                end = x.shape[-1] + tokens_to_remove
                layer.conv_states[i] = x[..., max(end - layer.conv_kernel_size[i], 0) : end]
        for i, state in layer.recurrent_states.items():
            if state is not None and tokens_to_remove:
                readings = records[i].readings if i in records else []
                layer.recurrent_states[i] = state_before(readings, -tokens_to_remove)

    return crop


def state_before(readings: Sequence[Reading], n: int) -> Tensor:
    """The state before the last n tokens of what was read in turn."""
    L = sum(reading.tokens[0].shape[1] for reading in readings)
    if n > L:
        raise ValueError(f"crop: {n} tokens to take back from a recurrent state, expected at most the {L} recorded")
    if n == L:
        return readings[0].state
    parts = zip(*(reading.tokens for reading in readings), strict=True)
    together = (torch.cat(part, 1) if len(readings) > 1 else part[0] for part in parts)
    return readings[0]._replace(tokens=tuple(x[:, : L - n] for x in together)).run()[1]


def refuses_guesses() -> property:
    """What transformers asks before assisted generation: is a model stateful? On a CPU its cache can go back."""
    return property(lambda model: model.device.type != "cpu")
