"""A token of a model with packed weights as one call of native code: kernels and buffers are laid out once.

What a token does is the same each time: the same kernels on the same buffers. So their arguments are made once, and one
call runs them all. The state lies in buffers of the decoder's own and is updated in place.
"""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gated_deltanet.layers.attention import AttentionMixer
from gated_deltanet.layers.gated_deltanet import GatedDeltaNetMixer
from gated_deltanet.layers.mlp import MLP
from gated_deltanet.layers.norm import RMSNorm
from gated_deltanet.layers.packed import Packed, PackedEmbedding
from gated_deltanet.ops import KVCache, native
from gated_deltanet.ops.attention.cpp import Attention, arguments
from gated_deltanet.ops.gated_rms_norm.cpp import RmsNorm
from gated_deltanet.ops.linear import pack
from gated_deltanet.ops.linear.cpp import FORMATS, Linear
from gated_deltanet.ops.packing import even_ends
from gated_deltanet.ops.rotary import table
from gated_deltanet.ops.short_conv.cpp import ShortConv
from gated_deltanet.ops.swiglu.cpp import SwiGLU

from .model import Block, CausalLM, State
from .state import map_state, tensors


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


def supports(model: CausalLM) -> bool:
    """Whether every part of the model is packed, or has a kernel of its own, on this machine."""
    if not isinstance(model.embedding, PackedEmbedding) or native.refusal(model.norm.weight) is not None:
        return False
    if any(x.dtype != torch.float32 for x in model.parameters()):
        return False
    return all(isinstance(block, Block) and not block.post_norm and takes(block.mixer) for block in model.layers)


def takes(mixer: Any) -> bool:
    if isinstance(mixer, GatedDeltaNetMixer):
        c = mixer.config
        usual = c.decay and c.gate and c.out_norm and c.conv_size is not None and c.n_h == 1
        return bool(usual and c.qk_norm == "l2" and c.feature_map == "silu" and mixer.b_proj.bias is None)
    return isinstance(mixer, AttentionMixer)


class Decoder:
    """N sequences that grow by a token at a time.

    `step` reads one each; `load` takes over a state; `state` is what the steps change, `snapshot` a copy of it.
    """

    def __init__(self, model: CausalLM, state: State):
        self.model, self.threads = model, torch.get_num_threads()
        self.N = len(next(tensors(state)))
        self.library = native.library()
        self.calls: list[tuple[str, ctypes.Structure]] = []
        self.kept: list[Any] = []  # what the calls point to
        self.caches: list[tuple[int, Attention, list[Turn], Any]] = []  # layer, its calls, its config
        self.steps, self.done = 0, c_int64(0)  # of tokens: counted here, and by the native code
        self.tokens = torch.zeros(self.N, dtype=torch.int64)
        self.length = torch.zeros(self.N, dtype=torch.int64)
        self.state: list[Any] = [own(layer) for layer in state]
        self._share_length()
        self.positions = positions_for(self.length)  # that tables of turns have
        self._lay_out()
        self.program = self._program()

    def fits(self, state: State) -> bool:
        """Whether the buffers can take over this state: as many sequences, caches no larger, the same threads."""
        shapes = zip(tensors(tuple(state)), tensors(tuple(self.state)), strict=True)
        return self.threads == torch.get_num_threads() and all(
            x.shape[0] == y.shape[0] and x.shape[2:] == y.shape[2:] and x.shape[1:2] <= y.shape[1:2] for x, y in shapes
        )

    @torch.inference_mode()
    def load(self, state: State) -> None:
        """Copies a state that `fits`."""
        for x, y in zip(tensors(tuple(state)), tensors(tuple(self.state)), strict=True):
            (y if x.shape == y.shape else y[:, : x.shape[1]]).copy_(x)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """What the head reads, [N, d_model], of one more token each. tokens: [N]."""
        self.tokens.copy_(tokens)
        if self.caches:
            self._make_room()
        try:
            self.library.gdn_run(self.program, len(self.calls), ctypes.byref(self.done))
        finally:  # an interruption meanwhile is seen here, when all is done
            if self.steps < self.done.value:
                self.steps += 1
                self.length += 1
        return self.hidden.clone()

    def snapshot(self) -> State:
        """A copy of the state, which nothing changes."""
        return tuple(map_state(Tensor.clone, layer) for layer in self.state)

    def _share_length(self) -> None:
        """All caches are as long: they have one tensor for it."""
        for i, layer in enumerate(self.state):
            if isinstance(layer, KVCache):
                self.length.copy_(layer.length)
                self.state[i] = layer._replace(length=self.length)

    def _make_room(self) -> None:
        """A cache of full attention that is full becomes twice as large; so does a table of positions."""
        longest = int(self.length.max())
        for i, call, turns, config in self.caches:
            cache = self.state[i]
            if config.window is None and longest >= cache.k.shape[1]:
                k, v = (torch.cat([x, torch.zeros_like(x)], 1) for x in cache[:2])
                self.state[i] = KVCache(k, v, self.length)
                call.capacity, call.k_cache, call.v_cache = k.shape[1], k.data_ptr(), v.data_ptr()
            if turns and longest >= self.positions:
                self._point_turns(turns, config)
        if longest >= self.positions:
            self.positions = positions_for(self.length)

    def _program(self) -> Any:
        array = (Call * len(self.calls))()
        for entry, (kernel, structure) in zip(array, self.calls, strict=True):
            entry.kernel = ctypes.cast(getattr(self.library, f"gdn_{kernel}"), c_void_p).value
            entry.arguments = ctypes.addressof(structure)
        return array

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
        packed = module.packed_weight if isinstance(module, Packed) else pack(module.weight.detach(), "float32")
        N, K = packed.shape
        y = torch.empty(self.N, N)
        bias = getattr(module, "bias", None)
        given |= {"x": x, "weight": packed.data, "y": y, **({} if bias is None else {"bias": bias})}
        self.kept += given.values()
        call = Linear(self.N, N, K, self.threads, FORMATS[f"packed {packed.format}"])
        native.point(call, **given)
        return call, y

    def _mlp(self, mlp: MLP, x: Tensor, residual: Tensor) -> Tensor:
        gate, up = self._linears(x, mlp.gate_proj, mlp.up_proj)
        y = torch.empty_like(up)
        self._call("swiglu_forward", SwiGLU(self.N, y.shape[1], self.threads, False), gate=gate, up=up, y=y)
        return self._linear(mlp.out_proj, y, residual)

    def _conv(self, conv: Any, x: Tensor, state: Tensor) -> Tensor:
        (D, K), y, ends = conv.weight.shape, torch.empty_like(x), even_ends(self.N, 1)
        taps = conv.weight.detach().mT.contiguous()
        structure = ShortConv(self.N, D, K, self.threads, False, True)
        given = {} if conv.bias is None else {"bias": conv.bias}
        self._call(
            "short_conv_forward", structure, ends=ends, x=x, taps=taps, state=state, y=y, last_state=state, **given
        )
        return y

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
        ends = even_ends(self.N, 1)
        rule = native.rule(q.view(self.N, c.n_heads, c.d_k), (keys, keys, values, each, each), state.S, ends, True)
        rule.o, rule.last_state = values, state.S.data_ptr()
        for name, z in (("q", q), ("k", k), ("v", v), ("log_alpha", both[0]), ("beta", both[1]), ("o", o)):
            getattr(rule, name).data = z.data_ptr()
            self.kept.append(z)
        self.kept.append(ends)
        self.calls.append(("gated_delta_rule_recurrent_forward", rule))
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
        call = arguments(q, k, v, cache.k, c.window)
        for name, z in (("q", q), ("k", k), ("v", v), ("o", o)):
            setattr(call, name, native.Rows(z.data_ptr(), z.stride(0), z.stride(1)))
        call.lengths, call.k_cache, call.v_cache = (z.data_ptr() for z in (self.length, cache.k, cache.v))
        self.calls.append(("attention_step", call))
        self.kept += [q, k, v, o]
        self.caches.append((i, call, turns, c))
        if turns:
            self._point_turns(turns, c)
        o = o.view(self.N, -1)
        for gate in gates:
            self._call("decode_sigmoid_gate", SigmoidGate(o.numel(), self.threads), gate=gate, y=o)
        return self._linear(mixer.out_proj, o, residual)

    def _turn(self, c: Any, x: Tensor) -> Turn:
        dims = c.rope_dims or c.d_head
        call = Turn(self.N, x.shape[1] // c.d_head, c.d_head, dims, self.threads)
        return self._call("decode_turn", call, lengths=self.length, y=x)

    def _point_turns(self, turns: list[Turn], c: Any) -> None:
        """At a table of more positions than any sequence has, up to twice as many."""
        angles = table(positions_for(self.length), c.rope_dims or c.d_head, c.rope_theta)
        self.kept.append(angles)
        for call in turns:
            call.turns = angles.data_ptr()


def own(layer: Any) -> Any:
    """A contiguous copy of a layer's state."""
    return map_state(lambda x: x.clone(memory_format=torch.contiguous_format), layer)


def positions_for(length: Tensor) -> int:
    return 1 << int(length.max() + 1).bit_length()
