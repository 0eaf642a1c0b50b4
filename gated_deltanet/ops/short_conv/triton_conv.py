"""The short convolution on a GPU: one launch forward, one backward, and small ones for the states.

Tokens are counted from the first of their sequence: position −1 is the last row of the state before it. A program
takes some positions of a sequence and some channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from ..launches import Chunks, how_many, launch, lay_out, rounded_up, rows_of
from ..triton_silu import silu, silu_slope

TOKENS, CHANNELS = 32, 64  # of a program: 16 numbers in each of 128 threads; 64 channels of bfloat16 are a cache line
OPTIONS = {"num_warps": 4, "num_stages": 2}
BACKWARD = {"num_warps": 8, "num_stages": 2}  # K² products, each with its loads: 4 spill


@triton.jit
def load_rows(x, row, channel, inside, stride, D: tl.constexpr):
    """[rows, channels] in float32. x: [rows, D]. inside: of the rows, those that are there."""
    mask = inside[:, None] & (channel < D)[None, :]
    return tl.load(x + row[:, None] * stride + channel[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, tile, row, channel, inside, D: tl.constexpr):
    mask = inside[:, None] & (channel < D)[None, :]
    tl.store(x + row[:, None] * D + channel[None, :], tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_inputs(x, state, sequence, start, length, position, channel, stride, D: tl.constexpr, K: tl.constexpr):
    """The inputs at these positions: of a token, of the state before the first one, or zero."""
    is_token, is_past = (position >= 0) & (position < length), (position < 0) & (position > -K)
    tokens = load_rows(x, start + position, channel, is_token, stride, D)
    return tokens + load_rows(state, sequence * (K - 1) + position + K - 1, channel, is_past, D, D)


@triton.jit
def load_tap(weight, channel, i, D: tl.constexpr, K: tl.constexpr):
    """[1, channels] of weight: [D, K]."""
    return tl.load(weight + channel * K + i, mask=channel < D, other=0.0).to(tl.float32)[None, :]


@triton.jit
def convolved(
    x, weight, bias, state, sequence, start, length, position, channel, stride,
    D: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """bias + Σ_i weight[:, i] · input at position − K + 1 + i."""
    z = load_tap(bias, channel, 0, D, 1) if BIAS else 0.0
    for i in tl.static_range(K):  # pyright: ignore[reportGeneralTypeIssues]
        at = position - (K - 1) + i
        z += load_tap(weight, channel, i, D, K) * load_inputs(
            x, state, sequence, start, length, at, channel, stride, D, K
        )
    return z


@triton.jit
def conv_forward(
    x, weight, bias, state, ends, sequences, starts, lengths, y, stride,
    D: tl.constexpr, K: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, ⌈D / CHANNELS⌉]. Writes y: [tokens, D]. x: [tokens, D], state: [N, K − 1, D], ends: [N + 1]."""
    chunk, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    if tl.load(lengths + chunk) == 0:
        return
    sequence = tl.load(sequences + chunk)
    start, end = tl.load(ends + sequence), tl.load(ends + sequence + 1)
    position = tl.load(starts + chunk) - start + tl.arange(0, TOKENS)
    z = convolved(x, weight, bias, state, sequence, start, end - start, position, channel, stride, D, K, BIAS)
    store_rows(y, silu(z) if SILU else z, start + position, channel, start + position < end, D)


@triton.jit
def last_inputs(
    x, state, ends, last_state, stride,
    D: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Grid [N, ⌈D / CHANNELS⌉]. Writes last_state, like state: the K − 1 inputs before each sequence's end."""
    sequence, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    start, row = tl.load(ends + sequence), tl.arange(0, ROWS)
    length = tl.load(ends + sequence + 1) - start
    inputs = load_inputs(x, state, sequence, start, length, length - (K - 1) + row, channel, stride, D, K)
    store_rows(last_state, inputs, sequence * (K - 1) + row, channel, row < K - 1, D)


@triton.jit
def output_gradient(
    x, weight, bias, state, dy, sequence, start, length, position, channel, stride, dy_stride,
    D: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """dy, before the activation; zero where there is no token."""
    d = load_rows(dy, start + position, channel, (position >= 0) & (position < length), dy_stride, D)
    if SILU:
        d *= silu_slope(
            convolved(x, weight, bias, state, sequence, start, length, position, channel, stride, D, K, BIAS)
        )
    return d


@triton.jit
def input_gradient(
    x, weight, bias, state, dy, dlast_state, sequence, start, length, position, channel, stride, dy_stride,
    D: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Of inputs at these positions: by the outputs up to K − 1 tokens later, and by the last state."""
    kept = position - length + K - 1
    d = load_rows(dlast_state, sequence * (K - 1) + kept, channel, (kept >= 0) & (kept < K - 1), D, D)
    for later in tl.static_range(K):
        d += load_tap(weight, channel, K - 1 - later, D, K) * output_gradient(
            x, weight, bias, state, dy, sequence, start, length, position + later, channel, stride, dy_stride,
            D, K, BIAS, SILU,
        )  # fmt: skip
    return d


@triton.jit
def conv_backward(
    x, weight, bias, state, dy, dlast_state, ends, sequences, starts, lengths, dx, dtaps, stride, dy_stride,
    D: tl.constexpr, K: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """Grid [chunks, ⌈D / CHANNELS⌉]. Writes dx: [tokens, D], and each chunk's part of dweight and, last, of dbias to
    dtaps: [chunks, K + 1, D], which are zero before."""
    chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    if tl.load(lengths + chunk) == 0:
        return
    sequence = tl.load(sequences + chunk)
    start, end = tl.load(ends + sequence), tl.load(ends + sequence + 1)
    position = tl.load(starts + chunk) - start + tl.arange(0, TOKENS)
    dX = input_gradient(
        x, weight, bias, state, dy, dlast_state, sequence, start, end - start, position, channel, stride, dy_stride,
        D, K, BIAS, SILU,
    )  # fmt: skip
    store_rows(dx, dX, start + position, channel, start + position < end, D)

    dZ = output_gradient(
        x, weight, bias, state, dy, sequence, start, end - start, position, channel, stride, dy_stride, D, K, BIAS, SILU
    )
    for i in tl.static_range(K):  # pyright: ignore[reportGeneralTypeIssues]
        inputs = load_inputs(x, state, sequence, start, end - start, position - (K - 1) + i, channel, stride, D, K)
        tl.store(dtaps + (chunk * (K + 1) + i) * D + channel, tl.sum(dZ * inputs, 0), mask=channel < D)
    tl.store(dtaps + (chunk * (K + 1) + K) * D + channel, tl.sum(dZ, 0), mask=channel < D)


@triton.jit
def past_gradient(
    x, weight, bias, state, dy, dlast_state, ends, dstate, stride, dy_stride,
    D: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """Grid [N, ⌈D / CHANNELS⌉]. Writes dstate, like state: positions −K + 1 to −1."""
    sequence, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    start, row = tl.load(ends + sequence), tl.arange(0, ROWS)
    length = tl.load(ends + sequence + 1) - start
    d = input_gradient(
        x, weight, bias, state, dy, dlast_state, sequence, start, length, row - (K - 1), channel, stride, dy_stride,
        D, K, BIAS, SILU,
    )  # fmt: skip
    store_rows(dstate, d, sequence * (K - 1) + row, channel, row < K - 1, D)


@triton.jit
def conv_step(
    x, weight, bias, state, y,
    D: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Grid [N, ⌈D / CHANNELS⌉]. One token of each sequence, x: [N, D]: writes y, like x, and moves the state up by one.

    A thread has all rows of its channels, and reads each before the one above it is overwritten.
    """
    sequence, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside, rows = channel < D, state + sequence * (K - 1) * D + channel
    z = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32) if BIAS else 0.0
    for i in tl.static_range(K - 1):  # pyright: ignore[reportGeneralTypeIssues]
        past = tl.load(rows + i * D, mask=inside, other=0.0)
        z += tl.load(weight + channel * K + i, mask=inside, other=0.0).to(tl.float32) * past.to(tl.float32)
        if i > 0:
            tl.store(rows + (i - 1) * D, past, mask=inside)
    now = tl.load(x + sequence * D + channel, mask=inside, other=0.0)
    z += tl.load(weight + channel * K + K - 1, mask=inside, other=0.0).to(tl.float32) * now.to(tl.float32)
    if K > 1:
        tl.store(rows + (K - 2) * D, now, mask=inside)
    tl.store(y + sequence * D + channel, (silu(z) if SILU else z).to(y.dtype.element_ty), mask=inside)


def forward(x, weight, bias, state, activation, cu_seqlens):
    y, last_state = (torch.empty_like(z, memory_format=torch.contiguous_format) for z in (x, state))
    X, weight, offset, state, chunks = prepare(x, weight, bias, state, cu_seqlens)
    sizes, switches = constants(weight), {"BIAS": bias is not None, "SILU": activation == "silu"}
    arguments = (X, weight, offset, state, chunks.ends, *chunks[2:], y, X.stride(0))
    launch(conv_forward, each_chunk(chunks, weight), arguments, sizes | {"TOKENS": TOKENS} | switches, OPTIONS)
    arguments = (X, state, chunks.ends, last_state, X.stride(0))
    launch(last_inputs, each_state(state, weight), arguments, sizes | past_rows(weight), OPTIONS)
    return y, last_state


def backward(grads, x, weight, bias, state, activation, cu_seqlens):
    dY, dlast_state, dtype = rows_of(grads[0]), grads[1].contiguous(), weight.dtype
    dx, dstate = (torch.empty_like(z, memory_format=torch.contiguous_format) for z in (x, state))
    X, weight, offset, state, chunks = prepare(x, weight, bias, state, cu_seqlens)
    (D, K), sizes = weight.shape, constants(weight) | {"BIAS": bias is not None, "SILU": activation == "silu"}
    dtaps = X.new_zeros(len(chunks.starts), K + 1, D, dtype=torch.float32)
    operands, strides = (X, weight, offset, state, dY, dlast_state, chunks.ends), (X.stride(0), dY.stride(0))
    arguments = (*operands, *chunks[2:], dx, dtaps, *strides)
    launch(conv_backward, each_chunk(chunks, weight), arguments, sizes | {"TOKENS": TOKENS}, BACKWARD)
    launch(past_gradient, each_state(state, weight), (*operands, dstate, *strides), sizes | past_rows(weight), OPTIONS)
    of_taps = dtaps.sum(0).to(dtype)
    return (dx, of_taps[:K].mT, dstate) if bias is None else (dx, of_taps[:K].mT, of_taps[K], dstate)


def step(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, activation: str | None) -> Tensor:
    """One token of decoding, as `short_conv_step_`: the state, which is contiguous, in place."""
    x, weight, y = x.contiguous(), weight.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    offset, switches = weight if bias is None else bias, {"BIAS": bias is not None, "SILU": activation == "silu"}
    launch(conv_step, each_state(state, weight), (x, weight, offset, state, y), constants(weight) | switches, OPTIONS)
    if not state.is_inference():
        increment_version(state)  # or autograd would not notice
    return y


def prepare(x, weight, bias, state, cu_seqlens) -> tuple[Tensor, Tensor, Tensor, Tensor, Chunks]:
    """x as [tokens, D], the others contiguous, and where the sequences lie."""
    offset = weight if bias is None else bias
    chunks = lay_out("short_conv", x, cu_seqlens, TOKENS)
    return rows_of(x), weight.contiguous(), offset.contiguous(), state.contiguous(), chunks


def constants(weight: Tensor) -> dict[str, int]:
    D, K = weight.shape
    return {"D": D, "K": K, "CHANNELS": CHANNELS}


def past_rows(weight: Tensor) -> dict[str, int]:
    return {"ROWS": rounded_up(weight.shape[1] - 1, least=1)}


def each_chunk(chunks: Chunks, weight: Tensor) -> tuple[int, int]:
    return len(chunks.starts), how_many(len(weight), CHANNELS)


def each_state(state: Tensor, weight: Tensor) -> tuple[int, int]:
    return len(state), how_many(len(weight), CHANNELS)
