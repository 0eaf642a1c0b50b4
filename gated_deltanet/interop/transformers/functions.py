"""Our ops with the names, arguments and layouts of the functions in transformers' modeling files, for tensors on a CPU.

Like those functions they take what else a model passes down, and leave it. NaN goes through, as it does there.
"""

from collections.abc import Callable
from functools import wraps
from platform import machine
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.ops import gated_rms_norm, native, short_conv
from gated_deltanet.ops.gated_delta_mix import BACKENDS as RULES_OF_UNIT_KEYS
from gated_deltanet.ops.gated_delta_rule import BACKENDS as RULES
from gated_deltanet.ops.gated_delta_rule import choose
from gated_deltanet.ops.library import plain
from gated_deltanet.ops.linear import linear
from gated_deltanet.ops.linear.cpp import few_rows

SILU = ("silu", "swish")
READING = "gdn_reading"  # the attribute of a state that says how it came about
FEW = 16  # rows of which a product only reads its weight
IN_FORCE: list[Any] = []  # the acceleration that is, if one is


class Reading(NamedTuple):
    """What the rule read, and from what state.

    tokens: q, k, v, log_alpha and beta, [B, L, …]. unit_keys: q and k are made unit vectors first.
    """

    tokens: tuple[Tensor, ...]
    state: Tensor
    unit_keys: bool

    def run(self, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """o and the state after the last token."""
        q, *others = self.tokens
        q = q if self.unit_keys else q * q.shape[-1] ** -0.5
        backend = "cpp-recurrent" if q.shape[1] <= FEW and native.refusal(q) is None else "auto"
        rule = choose("gated_delta_rule", RULES_OF_UNIT_KEYS if self.unit_keys else RULES, backend, q)
        return rule(q, *others, self.state, cu_seqlens)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """`ops.gated_delta_rule` of the chunk and of the recurrent function; chunk_size is ours to choose.

    query, key: [B, L, H, d_k], value: [B, L, H_v, d_v], g (log α), beta: [B, L, H_v], state: [N, H_v, d_k, d_v].
    Everything is float32, as in transformers, or float64 with float64 inputs. The state remembers its `Reading`.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    tokens, ends = packed((query, key, value, g, beta), cu_seqlens, seq_idx)
    shape = [len(query) if ends is None else len(ends) - 1, value.shape[2], query.shape[3], value.shape[3]]
    state = query.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    if list(state.shape) != shape:
        raise ValueError(f"gated_delta_rule: initial_state is {list(state.shape)}, expected {shape}")
    reading = Reading(tuple(x.to(dtype) for x in tokens), state, use_qk_l2norm_in_kernel)
    o, state = reading.run(ends)
    if not torch.compiler.is_compiling() and ends is None:
        vars(state)[READING] = reading
    return o.reshape(value.shape).to(query.dtype), state if output_final_state else None


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """`ops.short_conv`. x: [B, D, L], weight: [D, K], bias: [D]."""
    (tokens,), ends = packed((x.mT,), cu_seq_lens_q, seq_idx)
    y = convolution(tokens, weight, bias, None, activation, ends)
    return y.reshape(x.mT.shape).to(x.dtype).mT


def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """The same for the next tokens. conv_state: [B, D, at least K − 1], the last inputs, is updated in place."""
    size = conv_state.shape[-1]
    before = conv_state[..., size - weight.shape[1] + 1 :].mT.contiguous()
    y = convolution(x.mT, weight, bias, before, activation, None)
    conv_state.copy_(torch.cat([conv_state, x], -1)[..., -size:])
    return y.to(x.dtype).mT


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, activation: str | None, ends: Tensor | None
) -> Tensor:
    """In the weight's dtype, as transformers computes it. x: [B, L, D], state: [N, K − 1, D]."""
    dtype, ours = weight.dtype, activation is None or activation in SILU
    state = None if state is None else state.to(dtype)
    silu = "silu" if activation in SILU else None
    y, _ = short_conv(x.to(dtype), weight, bias, state, activation=silu, cu_seqlens=ends)
    return y if ours else named_activation(str(activation))(y)


def named_activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


def norm_forward(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The forward of a module that is the norm times silu(gate): `ops.gated_rms_norm`; for other gates its own."""

    @wraps(own)
    def forward(norm: Any, x: Tensor, gate: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        if not taken(x) or gate is None or not gated_by_silu(norm) or args or kwargs:
            return own(norm, x, gate, *args, **kwargs)
        return gated_norm(norm, x, gate)

    return forward


def gated_by_silu(norm: Any) -> bool:
    return getattr(norm, "activation", "silu") in SILU


def gated_norm(norm: Any, x: Tensor, gate: Tensor) -> Tensor:
    dtype = torch.promote_types(x.dtype, gate.dtype)
    return gated_rms_norm(x.to(dtype), gate.to(dtype), norm.weight, eps=eps_of(norm)).to(x.dtype)


def eps_of(norm: Any) -> float:
    return getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", 0.0)


def linear_forward(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The forward of nn.Linear on a CPU: for few rows without a gradient a kernel that only reads the weight, for
    bfloat16 where torch is slow with it `ops.linear`, and its own for everything else."""
    slow = bfloat16_is_slow()

    @wraps(own)
    def forward(module: Any, x: Tensor) -> Tensor:
        weight, bias = module.weight, module.bias
        if not taken(x) or torch.is_autocast_enabled("cpu") or not fit(x, weight, bias):
            return own(module, x)
        if x.numel() <= FEW * x.shape[-1] and native.refusal(x) is None and plain(x, weight, bias):
            return few_rows(x, weight, bias)
        if slow and x.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
            return linear(x, weight, bias)
        return own(module, x)

    return forward


def fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether shapes and dtypes are those of a projection. What torch says of others is for torch to say."""
    same = x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype)
    return same and x.ndim > 0 and weight.ndim == 2 and x.shape[-1] == weight.shape[1]


def bfloat16_is_slow() -> bool:
    """Whether torch multiplies bfloat16 matrices without instructions for it, at an eighth of float32's speed."""
    supported = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    known = machine() in ("x86_64", "AMD64") and all(supported) and native.instruction_set() is not None
    return known and not any(ask() for ask in supported if ask)


def packed(
    tokens: tuple[Tensor, ...], cu_seqlens: Tensor | None, seq_idx: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The tokens in one row and where its sequences end; as they are if nothing is packed.

    tokens: [B, L, …]. cu_seqlens: [N + 1], or seq_idx: [B, L], to which sequence of its row a token belongs.
    """
    if cu_seqlens is None and seq_idx is not None:
        starts = F.pad(seq_idx.diff(dim=1) != 0, (1, 0), value=True).flatten().nonzero().flatten()
        cu_seqlens = F.pad(starts, (0, 1), value=seq_idx.numel())
    return tokens if cu_seqlens is None else tuple(x.flatten(0, 1)[None] for x in tokens), cu_seqlens


def on_cpu(ours: Callable, own: Callable) -> Callable:
    """ours for tensors on a CPU, own for others and for torch.export, whose graphs others have to read."""

    @wraps(own, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        x = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        return (ours if taken(x) else own)(*args, **kwargs)

    return function


def taken(x: Tensor) -> bool:
    """Not after the end either: others, such as the package kernels, keep a class's forward in its instances."""
    return x.is_cpu and bool(IN_FORCE) and not torch.compiler.is_exporting()
