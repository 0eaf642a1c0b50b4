"""The kernels and buffers of a token, or of several: laid out once, and then one call of native code each time."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gated_deltanet.layers.gated_deltanet import GatedDeltaNetMixer
from gated_deltanet.layers.mlp import MLP
from gated_deltanet.layers.norm import RMSNorm
from gated_deltanet.layers.packed import Packed, PackedEmbedding
from gated_deltanet.ops import native
from gated_deltanet.ops.attention.cpp import Attention, arguments
from gated_deltanet.ops.gated_rms_norm.cpp import RmsNorm
from gated_deltanet.ops.linear import PackedWeight, pack
from gated_deltanet.ops.linear.cpp import FORMATS, Linear
from gated_deltanet.ops.packing import even_ends
from gated_deltanet.ops.rotary import table
from gated_deltanet.ops.short_conv.cpp import ShortConv
from gated_deltanet.ops.swiglu.cpp import SwiGLU

from .model import CausalLM


class Gates(ctypes.Structure):
    """As in csrc/step.h; so are the next."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "H", "threads")),
        ("beta_max", c_double),
        *((name, c_void_p) for name in ("a", "b", "A_log", "dt_bias", "y")),
    )


class Turn(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("N", "H", "d", "dims", "threads")),
        *((name, c_void_p) for name in ("lengths", "turns", "y")),
    )


class SigmoidGate(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("n", "threads")),
        *((name, c_void_p) for name in ("gate", "y")),
    )


class Call(ctypes.Structure):
    _fields_ = (("kernel", c_void_p), ("arguments", c_void_p))


class Shared(NamedTuple):
    """What all passes of a decoder have in common."""

    model: CausalLM
    threads: int
    state: list[Any]  # of each layer
    length: Tensor  # of each sequence
    small: dict[Any, PackedWeight]  # weights packed for them, by their modules
    unread: dict[Any, Tensor]  # states that nobody wants, by their shapes


class Pass:
    """The calls of native code for a token of each of N sequences, which update the state: `reading`.

    Or for `ahead` tokens of one: `reading` leaves the state alone, and `taking` goes over the first ends[1] tokens
    again to update it. That is convolutions and rules only, which read no weights.
    """

    def __init__(self, shared: Shared, ahead: int, positions: int):
        self.model, self.threads, self.state, length, self.small, self.unread = shared
        self.ahead, self.N = ahead, ahead or len(length)  # rows
        self.calls: list[tuple[str, ctypes.Structure]] = []
        self.again: list[tuple[str, ctypes.Structure]] = []  # to take tokens
        self.kept: list[Any] = []  # what the calls point to
        self.caches: list[tuple[int, list[Attention], list[Turn], Any]] = []  # layer, its calls, its config
        self.saved: list[tuple[Tensor, Tensor, Tensor]] = []  # a cache, slots of it, what they held
        self.tokens = torch.zeros(self.N, dtype=torch.int64)
        self.lengths = torch.zeros(ahead, dtype=torch.int64) if ahead else length
        self.ends = torch.tensor([0, ahead])
        self._lay_out()
        self.point(positions)
        self.reading, self.taking = program(self.calls), program(self.again)

    def point(self, positions: int) -> None:
        """At caches and tables of positions, where they are now."""
        for i, calls, turns, config in self.caches:
            k, v, _ = self.state[i]
            for call in calls:
                call.capacity, call.k_cache, call.v_cache = k.shape[1], k.data_ptr(), v.data_ptr()
            if turns:
                angles = table(positions, config.rope_dims or config.d_head, config.rope_theta)
                self.kept.append(angles)
                for call in turns:
                    call.turns = angles.data_ptr()

    def save_slots(self) -> None:
        """What the tokens looked at overwrite in the caches of windows. Others are empty there."""
        self.saved = []
        for i, _, _, config in self.caches:
            if config.window is not None:
                slots = self.lengths % config.window
                self.saved += [(x, slots, x[:, slots]) for x in self.state[i][:2]]

    def restore_slots(self, taken: int) -> None:
        """Of the tokens that are not taken."""
        if taken == self.ahead:
            return
        for x, slots, old in self.saved:
            x[:, slots[taken:]] = old[:, taken:]
        first = int(self.lengths[taken]) if self.caches else 0
        for i, _, _, config in self.caches:
            if config.window is None:
                for x in self.state[i][:2]:
                    x[:, first : first + self.ahead - taken] = 0

    def _call(self, kernel: str, structure: Any, **operands: Tensor) -> Any:
        for name, x in operands.items():
            self.kept.append(x)
            field = getattr(structure, name)
            if isinstance(field, native.Rows):
                setattr(structure, name, native.Rows(x.data_ptr(), x.stride(0), x.shape[-1]))
            else:
                setattr(structure, name, x.data_ptr())
        self.calls.append((kernel, structure))
        return structure

    def _goes_on(self, kernel: str, call: Any, state: Tensor) -> None:
        """This call goes on from a state, and writes the one after it: over it, or where nobody reads it."""
        call.state = call.last_state = state.data_ptr()
        if self.ahead:
            again = type(call).from_buffer_copy(call)  # what else it writes is there already
            again.ends = self.ends.data_ptr()
            self.again.append((kernel, again))
            call.last_state = self.unread.setdefault(state.shape, torch.empty_like(state)).data_ptr()

    def _lay_out(self) -> None:
        model, N = self.model, self.N
        embedding = model.embedding
        assert isinstance(embedding, PackedEmbedding)
        x = torch.empty(N, model.config.d_model)
        rows = Linear(N, *embedding.shape, self.threads, FORMATS[f"packed {embedding.format}"])
        self._call("linear_unpack", rows, weight=embedding.packed, y=x, rows=self.tokens)
        blocks: list[Any] = list(model.layers)
        for i, block in enumerate(blocks):
            mix = self._gated_deltanet if isinstance(block.mixer, GatedDeltaNetMixer) else self._attention
            x = mix(i, block.mixer, self._norm(block.mixer_norm, x), x)
            if block.mlp is not None:
                x = self._mlp(block.mlp, self._norm(block.mlp_norm, x), x)
        self.hidden = self._norm(model.norm, x)

    def _norm(self, norm: RMSNorm, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Rows of x: […, d]."""
        d, y = norm.weight.shape[0], torch.empty_like(x)
        rows = native.Rows(None, d, d)
        gates = native.Rows() if gate is None else rows
        structure = RmsNorm(x.numel() // d, 1, d, self.threads, False, norm.eps, rows, gates, None, rows)
        call = self._call("gated_rms_norm_forward", structure, weight=norm.weight)
        call.x.data, call.y.data = x.data_ptr(), y.data_ptr()
        self.kept += [x, y]
        if gate is not None:
            call.gate.data = gate.data_ptr()
            self.kept.append(gate)
        return y

    def _linears(self, x: Tensor, *modules: Any) -> list[Tensor]:
        """What projections make of the same x, in one call."""
        calls, results = zip(*(self._arguments(module, x) for module in modules), strict=True)
        for call, other in pairwise(calls):
            call.next = ctypes.addressof(other)
        self.kept += calls
        self.calls.append(("linear", calls[0]))
        return list(results)

    def _linear(self, module: Any, x: Tensor, added: Tensor) -> Tensor:
        call, y = self._arguments(module, x, added=added)
        self.calls.append(("linear", call))
        return y

    def _arguments(self, module: Any, x: Tensor, **given: Tensor) -> tuple[Linear, Tensor]:
        """Of a projection's product, and where it goes."""
        packed = module.packed_weight if isinstance(module, Packed) else self._small(module)
        N, K = packed.shape
        y = torch.empty(self.N, N)
        bias = getattr(module, "bias", None)
        given |= {"x": x, "weight": packed.data, "y": y, **({} if bias is None else {"bias": bias})}
        self.kept += given.values()
        call = Linear(self.N, N, K, self.threads, FORMATS[f"packed {packed.format}"])
        native.point(call, **given)
        return call, y

    def _small(self, module: Any) -> PackedWeight:
        """The weight of a projection that is not packed."""
        if module not in self.small:
            self.small[module] = pack(module.weight.detach(), "float32")
        return self.small[module]

    def _mlp(self, mlp: MLP, x: Tensor, residual: Tensor) -> Tensor:
        gate, up = self._linears(x, mlp.gate_proj, mlp.up_proj)
        y = torch.empty_like(up)
        self._call("swiglu_forward", SwiGLU(self.N, y.shape[1], self.threads, False), gate=gate, up=up, y=y)
        return self._linear(mlp.out_proj, y, residual)

    def _conv(self, conv: Any, x: Tensor, state: Tensor) -> Tensor:
        (D, K), y = conv.weight.shape, torch.empty_like(x)
        taps = conv.weight.detach().mT.contiguous()
        structure = ShortConv(len(state), D, K, self.threads, False, True)
        given = {} if conv.bias is None else {"bias": conv.bias}
        call = self._call("short_conv_forward", structure, ends=self._ends(), x=x, taps=taps, y=y, **given)
        self._goes_on("short_conv_forward", call, state)
        return y

    def _ends(self) -> Tensor:
        """Of the sequences that the rows are."""
        return even_ends(1, self.ahead) if self.ahead else even_ends(self.N, 1)

    def _gated_deltanet(self, i: int, mixer: Any, x: Tensor, residual: Tensor) -> Tensor:
        c, state = mixer.config, self.state[i]
        projections = (getattr(mixer, f"{name}_proj") for name in ("q", "k", "v", "gate", "a", "b"))
        q, k, v, gate, a, b = self._linears(x, *projections)
        q, k, v = (
            self._conv(getattr(mixer, f"{name}_conv"), z, getattr(state, f"{name}_conv"))
            for name, z in (("q", q), ("k", k), ("v", v))
        )
        both, o = torch.empty(2, *a.shape), torch.empty_like(v)
        decay = {"A_log": mixer.decay.A_log, "dt_bias": mixer.decay.dt_bias}
        gates = Gates(self.N, c.H_v, self.threads, c.beta_max)
        self._call("decode_gates", gates, a=a, b=b, **decay, y=both)
        keys, values, each = (
            native.Rows(None, heads * d, d) for heads, d in ((c.n_heads, c.d_k), (c.H_v, c.d_v), (c.H_v, 1))
        )
        ends = self._ends()
        rule = native.rule(q.view(self.N, c.n_heads, c.d_k), (keys, keys, values, each, each), state.S, ends, True)
        rule.o = values
        for name, z in (("q", q), ("k", k), ("v", v), ("log_alpha", both[0]), ("beta", both[1]), ("o", o)):
            getattr(rule, name).data = z.data_ptr()
            self.kept.append(z)
        self.kept.append(ends)
        self.calls.append(("gated_delta_rule_recurrent_forward", rule))
        self._goes_on("gated_delta_rule_recurrent_forward", rule, state.S)
        return self._linear(mixer.out_proj, self._norm(mixer.out_norm, o, gate), residual)

    def _attention(self, i: int, mixer: Any, x: Tensor, residual: Tensor) -> Tensor:
        c = mixer.config
        gated = [] if mixer.gate_proj is None else [mixer.gate_proj]
        q, k, v, *gates = self._linears(x, mixer.q_proj, mixer.k_proj, mixer.v_proj, *gated)
        if c.qk_norm != "none":
            q, k = self._norm(mixer.q_norm, q), self._norm(mixer.k_norm, k)
        turns = [] if c.rope_theta is None else [self._turn(c, z) for z in (q, k)]
        q, k, v = (z.view(self.N, -1, c.d_head) for z in (q, k, v))
        o, cache = torch.empty_like(q), self.state[i]
        calls = [arguments(q, k, v, cache.k, c.window) for _ in range(self.ahead or 1)]
        for t, call in enumerate(calls):  # a step of each sequence, or one after another
            for name, z in (("q", q), ("k", k), ("v", v), ("o", o)):
                setattr(call, name, native.Rows(z[t].data_ptr(), z.stride(0), z.stride(1)))
            call.lengths = self.lengths[t:].data_ptr()
            self.calls.append(("attention_step", call))
        self.kept += [q, k, v, o]
        self.caches.append((i, calls, turns, c))
        o = o.view(self.N, -1)
        for gate in gates:
            self._call("decode_sigmoid_gate", SigmoidGate(o.numel(), self.threads), gate=gate, y=o)
        return self._linear(mixer.out_proj, o, residual)

    def _turn(self, c: Any, x: Tensor) -> Turn:
        dims = c.rope_dims or c.d_head
        call = Turn(self.N, x.shape[1] // c.d_head, c.d_head, dims, self.threads)
        return self._call("decode_turn", call, lengths=self.lengths, y=x)


def program(calls: list[tuple[str, ctypes.Structure]]) -> Any:
    """As `gdn_run` takes it. The calls must stay alive."""
    library, array = native.library(), (Call * len(calls))()
    for entry, (kernel, structure) in zip(array, calls, strict=True):
        entry.kernel = ctypes.cast(getattr(library, f"gdn_{kernel}"), c_void_p).value
        entry.arguments = ctypes.addressof(structure)
    return array
