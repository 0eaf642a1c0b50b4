"""A token of a model with packed weights as one call of native code: kernels and buffers are laid out once.

What a token does is the same each time: the same kernels on the same buffers. So their arguments are made once, and one
call runs them all. The state lies in buffers of the decoder's own and is updated in place. Several tokens of a sequence
are one call, too: their products share one pass over the weights, and have the bits of single tokens.
"""

import ctypes
from ctypes import c_int64
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.layers.attention import AttentionMixer
from gated_deltanet.layers.gated_deltanet import GatedDeltaNetMixer
from gated_deltanet.layers.packed import PackedEmbedding
from gated_deltanet.ops import KVCache, native

from .decoder_calls import Pass, Shared
from .model import Block, CausalLM, State
from .state import map_state, tensors

AHEAD = 16  # tokens of a sequence in one call, at most


def supports(model: CausalLM) -> bool:
    """Whether every part of the model is packed, or has a kernel of its own, on this machine."""
    if not isinstance(model.embedding, PackedEmbedding) or native.refusal(model.norm.weight) is not None:
        return False
    if any(x.dtype != torch.float32 for x in model.parameters()):
        return False
    return all(isinstance(block, Block) and not block.post_norm and takes(block.mixer) for block in model.layers)


def most_ahead(model: CausalLM) -> int:
    """Tokens that `Decoder.look` takes at most: no more than any window, whose slots they are written to."""
    windows = (getattr(mixer, "window", None) for mixer in model.config.mixers)
    return min([AHEAD, *(window for window in windows if window is not None)])


def takes(mixer: Any) -> bool:
    if isinstance(mixer, GatedDeltaNetMixer):
        c = mixer.config
        usual = c.decay and c.gate and c.out_norm and c.conv_size is not None and c.n_h == 1
        return bool(usual and c.qk_norm == "l2" and c.feature_map == "silu" and mixer.b_proj.bias is None)
    return isinstance(mixer, AttentionMixer)


class Decoder:
    """N sequences that grow by a token at a time, or one that grows by several.

    `step` reads a token each. `look` tells what the head reads of the next few tokens of a sequence, and `take` then
    reads the first of them, or all. `load` takes over a state; `state` is what they change, `snapshot` a copy of it.
    """

    def __init__(self, model: CausalLM, state: State):
        self.model, self.threads = model, torch.get_num_threads()
        self.N = len(next(tensors(state)))
        self.library = native.library()
        self.steps, self.done = 0, c_int64(0)  # changes of the state: counted here, and by the native code
        self.length = torch.zeros(self.N, dtype=torch.int64)
        self.state: list[Any] = [own(layer) for layer in state]
        self._share_length()
        self.positions = positions_for(self.length, 1)  # that tables of turns have
        self.shared = Shared(model, self.threads, self.state, self.length, {}, {})
        self.passes: dict[int, Pass] = {}  # by the tokens to look at; 0: a step
        self.looked: Pass | None = None  # at tokens that can be taken
        self.taken = 0  # of these; the state follows in `settle`
        self._pass(0)  # now, and not while the first token is waited for

    def fits(self, state: State) -> bool:
        """Whether the buffers can take over this state: as many sequences, caches no larger, the same threads."""
        shapes = zip(tensors(tuple(state)), tensors(tuple(self.state)), strict=True)
        return self.threads == torch.get_num_threads() and all(
            x.shape[0] == y.shape[0] and x.shape[2:] == y.shape[2:] and x.shape[1:2] <= y.shape[1:2] for x, y in shapes
        )

    @torch.inference_mode()
    def load(self, state: State) -> None:
        """Copies a state that `fits`."""
        self.looked, self.taken = None, 0
        for x, y in zip(tensors(tuple(state)), tensors(tuple(self.state)), strict=True):
            (y if x.shape == y.shape else y[:, : x.shape[1]]).copy_(x)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """What the head reads, [N, d_model], of one more token each. tokens: [N]."""
        self.settle()
        now = self._pass(0)
        now.tokens.copy_(tokens)
        self._advance(now.reading, 1)
        return now.hidden.clone()

    @torch.inference_mode()
    def look(self, tokens: Tensor) -> Tensor:
        """What the head reads of the next tokens of one sequence, [T, d_model]. tokens: [T], at most `most_ahead`."""
        self.settle()
        now = self._pass(len(tokens))
        now.tokens.copy_(tokens)
        torch.add(self.length, torch.arange(len(tokens)), out=now.lengths)
        now.save_slots()
        self.looked = now
        self.library.gdn_run(now.reading, len(now.reading), ctypes.byref(c_int64(0)))
        return now.hidden.clone()

    def take(self, n: int) -> None:
        """Read the next n of the tokens looked at, of which there are `left`."""
        self.taken += n

    @property
    def left(self) -> int:
        return len(self.looked.tokens) - self.taken if self.looked else 0

    @property
    def hidden(self) -> Tensor:
        """What the head reads of the token that was read or taken last, [N, d_model]."""
        return self.looked.hidden[self.taken - 1][None] if self.looked and self.taken else self.passes[0].hidden

    @torch.inference_mode()
    def settle(self) -> None:
        """Bring the state to the tokens taken. Others that were looked at cannot be taken any more."""
        if self.looked is not None:
            self.looked.restore_slots(self.taken)
            if self.taken:
                self.looked.ends[1] = self.taken
                self._advance(self.looked.taking, self.taken)
            self.looked = None

    def snapshot(self) -> State:
        """A copy of the state, which nothing changes."""
        self.settle()
        return tuple(map_state(Tensor.clone, layer) for layer in self.state)

    def _advance(self, calls: Any, tokens: int) -> None:
        """Run what changes the state. An interruption meanwhile is seen at the end, when all is done."""
        try:
            self.library.gdn_run(calls, len(calls), ctypes.byref(self.done))
        finally:
            if self.steps < self.done.value:
                self.steps += 1
                self.length += tokens
                self.looked, self.taken = None, 0

    def _share_length(self) -> None:
        """All caches are as long: they have one tensor for it."""
        for i, layer in enumerate(self.state):
            if isinstance(layer, KVCache):
                self.length.copy_(layer.length)
                self.state[i] = layer._replace(length=self.length)

    def _pass(self, ahead: int) -> Pass:
        """With room for its tokens. ahead: how many; 0: one of each sequence."""
        self._make_room(ahead or 1)
        if ahead not in self.passes:
            self.passes[ahead] = Pass(self.shared, ahead, self.positions)
        return self.passes[ahead]

    def _make_room(self, tokens: int) -> None:
        """A cache of full attention that is too small becomes twice as large; so does a table of positions."""
        caches = [i for i, layer in enumerate(self.state) if isinstance(layer, KVCache)]
        if not caches:
            return
        needed, grown = int(self.length.max()) + tokens, False
        for i in caches:
            config: Any = self.model.config.mixer(i)
            k, v, _ = self.state[i]
            if config.window is None and needed > k.shape[1]:
                more = (0, 0, 0, 0, 0, max(k.shape[1], tokens))
                self.state[i], grown = KVCache(F.pad(k, more), F.pad(v, more), self.length), True
        if needed > self.positions:
            self.positions, grown = positions_for(self.length, tokens), True
        if grown:
            for each in self.passes.values():
                each.point(self.positions)


def own(layer: Any) -> Any:
    """A contiguous copy of a layer's state."""
    return map_state(lambda x: x.clone(memory_format=torch.contiguous_format), layer)


def positions_for(length: Tensor, more: int) -> int:
    """More than any sequence has with so many tokens more, up to twice as many."""
    return 1 << (int(length.max()) + more).bit_length()
