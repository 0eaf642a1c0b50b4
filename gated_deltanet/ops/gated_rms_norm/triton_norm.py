"""The gated RMS norm on a GPU: one launch forward, one backward, each number read and written once."""

import torch
import triton
import triton.language as tl

from ..launches import how_many, launch, rounded_up, rows_of
from ..triton_silu import silu, silu_slope

NUMBERS = 2048  # of a tile, if a row has fewer: 16 in each of 128 threads
ROWS = 64  # that a program of backward takes, so that the parts of dweight are few


@triton.jit
def load_rows(x, first, rows, stride, D: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """[HEIGHT, WIDTH] in float32: the rows from `first` on. x: [rows, D]."""
    row, column = first + tl.arange(0, HEIGHT), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < D)[None, :]
    return tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, tile, first, rows, D: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    row, column = first + tl.arange(0, HEIGHT), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < D)[None, :]
    tl.store(x + row[:, None] * D + column[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def norm_forward(
    x, gate, weight, y, rows, x_stride, gate_stride, eps,
    D: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid [⌈rows / HEIGHT⌉]. Writes x / √(mean(x²) + eps) · weight · silu(gate) to y: [rows, D]. WIDTH ≥ D."""
    first = tl.program_id(0).to(tl.int64) * HEIGHT
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    X = load_rows(x, first, rows, x_stride, D, HEIGHT, WIDTH)
    Y = X * tl.rsqrt(tl.sum(X * X, 1) / D + eps)[:, None] * w[None, :]
    if GATED:
        Y *= silu(load_rows(gate, first, rows, gate_stride, D, HEIGHT, WIDTH))
    store_rows(y, Y, first, rows, D, HEIGHT, WIDTH)


@triton.jit
def norm_backward(
    x, gate, weight, dy, dx, dgate, dweight, rows, x_stride, gate_stride, dy_stride, eps,
    D: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid [⌈rows / ROWS⌉]. With z = x r, r = 1 / √(mean(x²) + eps) and dz = dy · silu(gate) · weight,

        dx = r (dz − z mean(dz z))        dgate = dy · z · weight · silu′(gate)        dweight = Σ dy · silu(gate) · z

    Writes dx, dgate: [rows, D], and the sum of its rows to dweight: [programs, D], float32.
    """
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    of_weight = tl.zeros((WIDTH,), tl.float32)
    for step in range(0, ROWS, HEIGHT):
        first = tl.program_id(0).to(tl.int64) * ROWS + step
        X = load_rows(x, first, rows, x_stride, D, HEIGHT, WIDTH)
        dY = load_rows(dy, first, rows, dy_stride, D, HEIGHT, WIDTH)
        r = tl.rsqrt(tl.sum(X * X, 1) / D + eps)[:, None]
        Z = X * r
        if GATED:
            G = load_rows(gate, first, rows, gate_stride, D, HEIGHT, WIDTH)
            store_rows(dgate, dY * Z * w[None, :] * silu_slope(G), first, rows, D, HEIGHT, WIDTH)
            dY *= silu(G)
        of_weight += tl.sum(dY * Z, 0)
        dZ = dY * w[None, :]
        store_rows(dx, r * (dZ - Z * (tl.sum(dZ * Z, 1) / D)[:, None]), first, rows, D, HEIGHT, WIDTH)
    tl.store(dweight + tl.program_id(0).to(tl.int64) * D + column, of_weight, mask=column < D)


def forward(x, gate, weight, eps):
    y, X = torch.empty_like(x, memory_format=torch.contiguous_format), rows_of(x)
    G, weight = X if gate is None else rows_of(gate), weight.contiguous()
    (rows, d), tile = X.shape, tiles(X.shape[1])
    arguments = (X, G, weight, y, rows, X.stride(0), G.stride(0), float(eps))
    grid, constants = (how_many(rows, tile["HEIGHT"]),), {"D": d, **tile, "GATED": gate is not None}
    launch(norm_forward, grid if d else (0,), arguments, constants, options(d))
    return y


def backward(grads, x, gate, weight, eps):
    X, dY, weight = rows_of(x), rows_of(grads[0]), weight.contiguous()
    G = X if gate is None else rows_of(gate)
    (rows, d), tile = X.shape, tiles(X.shape[1])
    dx, dgate = (torch.empty_like(z, memory_format=torch.contiguous_format) for z in (x, x if gate is None else gate))
    dweight = X.new_empty(how_many(rows, ROWS), d, dtype=torch.float32)
    arguments = (X, G, weight, dY, dx, dgate, dweight, rows, X.stride(0), G.stride(0), dY.stride(0), float(eps))
    constants = {"D": d, **tile, "ROWS": ROWS, "GATED": gate is not None}
    launch(norm_backward, (len(dweight),) if d else (0,), arguments, constants, options(d))
    of_weight = dweight.sum(0).to(weight.dtype)
    return (dx, of_weight) if gate is None else (dx, dgate, of_weight)


def tiles(d: int) -> dict[str, int]:
    """A row is never split: its mean is needed before its first number is written."""
    width = rounded_up(d)
    return {"HEIGHT": min(max(NUMBERS // width, 1), ROWS), "WIDTH": width}


def options(d: int) -> dict[str, int]:
    """16 numbers of a tile in a thread."""
    return {"num_warps": min(max(rounded_up(d) // 512, 4), 16), "num_stages": 2}
