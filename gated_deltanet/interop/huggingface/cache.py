"""A model's state as the cache that `generate()` carries along."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import Cache

from gated_deltanet.models.model import State
from gated_deltanet.models.state import map_state


class Record(NamedTuple):
    """A state, and what was read since: x: [B, L, d_model], embedded tokens; mask: [B, L]."""

    state: State | None
    x: Tensor
    mask: Tensor


class StateCache(Cache):
    """Holds our state, whatever the mixers; the stock caches know no model without attention.

    The state is never changed in place, so `copy.copy(cache)` is a snapshot, and costs nothing.
    Columns are those of the padded batch: generate() counts in them, the state does not know padding.
    """

    def __init__(self):
        super().__init__(layers=[])
        self.recording = False
        self.reset()

    def reset(self) -> None:
        self.state: State | None = None
        self.length = 0  # columns seen
        self.record: Record | None = None
        self.unread: tuple[Tensor, Tensor] | None = None  # x, mask: to be read again before anything else

    def append(self, state: State, x: Tensor, mask: Tensor | None) -> None:
        """The state after x: [B, L, d_model], mask: [B, L], which were read from `self.state`. No mask: no padding."""
        if self.recording:
            mask = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
            before = self.record or Record(self.state, x[:, :0], mask[:, :0])
            self.record = Record(before.state, torch.cat([before.x, x], 1), torch.cat([before.mask, mask], 1))
        self.state, self.length = state, self.length + x.shape[1]

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last −tokens_to_remove columns, as assisted generation asks; 0: nothing will be.

        A recurrent state cannot run backwards: the one where recording began, or of the last crop, is put back, and
        what is left of the columns since is read again with the next call.
        """
        n = -tokens_to_remove
        if n < 0:
            raise ValueError(f"crop: tokens_to_remove is {tokens_to_remove}, expected at most 0: −n takes back n")
        if n == 0:
            self.record = None
            return
        if self.record is None:
            raise ValueError("crop: nothing was recorded, expected activate_past_recording() before it was read")
        state, x, mask = self.record
        if n > x.shape[1]:
            raise ValueError(f"crop: {n} tokens to take back, expected at most the {x.shape[1]} recorded")
        x, mask = x[:, :-n], mask[:, :-n]
        self.state, self.length, self.record = state, self.length - n, Record(state, x, mask)
        self.unread = (x, mask) if x.shape[1] else None

    def read_again(self, read: Callable[[Tensor, Tensor, State | None], State]) -> None:
        """Bring the state to where `crop` has cut. read: what x, mask make of a state."""
        if self.unread is not None:
            self.state = read(*self.unread, self.state)
            self.record = self.unread = None

    def activate_past_recording(self) -> None:
        self.recording = True

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda x: x.repeat_interleave(repeats, 0))

    def _each(self, function: Callable[[Tensor], Tensor]) -> None:
        self.state, self.unread, self.record = map_state(function, (self.state, self.unread, self.record))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # none

    @property
    def is_compileable(self) -> bool:
        return False  # else generate() would hand over four-dimensional masks

    @property
    def is_croppable(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.state or ())

    def __repr__(self) -> str:
        return f"StateCache({self.length} tokens, {len(self)} layers)"
