"""SwiGLU on a GPU: one launch forward, one backward, each number read and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launches import how_many, launch, rows_of
from ..triton_silu import silu, silu_slope

WIDTH, OPTIONS = 1024, {"num_warps": 4, "num_stages": 2}  # 8 numbers of each operand in a thread: 16 bytes of bfloat16


@triton.jit
def swiglu_forward(gate, up, y, gate_stride, up_stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Grid [rows, ⌈D / WIDTH⌉]. Writes silu(gate) · up to y: [rows, D]."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gate + row * gate_stride + column, mask=column < D, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=column < D, other=0.0).to(tl.float32)
    tl.store(y + row * D + column, (silu(g) * u).to(y.dtype.element_ty), mask=column < D)


@triton.jit
def swiglu_backward(gate, up, dy, dgate, dup, gate_stride, up_stride, dy_stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Grid [rows, ⌈D / WIDTH⌉]. Writes dgate, dup: [rows, D]."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gate + row * gate_stride + column, mask=column < D, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=column < D, other=0.0).to(tl.float32)
    d = tl.load(dy + row * dy_stride + column, mask=column < D, other=0.0).to(tl.float32)
    tl.store(dgate + row * D + column, (d * u * silu_slope(g)).to(dgate.dtype.element_ty), mask=column < D)
    tl.store(dup + row * D + column, (d * silu(g)).to(dup.dtype.element_ty), mask=column < D)


def forward(gate, up):
    y = torch.empty_like(gate, memory_format=torch.contiguous_format)
    run(swiglu_forward, (gate, up), (y,))
    return y


def backward(grads, gate, up):
    results = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (gate, up))
    run(swiglu_backward, (gate, up, grads[0]), results)
    return results


def run(kernel, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    rows = [rows_of(x) for x in operands]
    count, d = rows[0].shape
    arguments = (*rows, *results, *(x.stride(0) for x in rows))
    launch(kernel, (count, how_many(d, WIDTH)), arguments, {"D": d, "WIDTH": WIDTH}, OPTIONS)
