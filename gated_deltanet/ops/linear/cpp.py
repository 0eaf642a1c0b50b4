"""The linear map in C++ (csrc/linear.cpp), with weights as they are, transposed (for gradients) or packed."""

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from .. import native

FORMATS = {
    "float32": 0, "bfloat16": 1, "transposed float32": 2, "transposed bfloat16": 3,
    "packed float32": 4, "packed bfloat16": 5, "packed int8": 6, "packed int4": 7,
}  # fmt: skip


class Linear(ctypes.Structure):
    """The arguments of linear and linear_unpack, as in csrc/api.h."""

    _fields_ = (
        *((name, c_int64) for name in ("M", "N", "K", "threads", "format")),
        *((name, c_void_p) for name in ("x", "weight", "bias", "added", "y", "rows", "next")),
    )


class LinearFewRows(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("M", "N", "K", "threads", "bfloat16")),
        *((name, c_void_p) for name in ("x", "weight", "bias", "y")),
    )


def forward(x, weight, bias, added, format, N):
    bias, added = (None if z is None else z.float().contiguous() for z in (bias, added))
    return product(x.float().contiguous(), bias, added, *readable(weight, format), N).to(x.dtype)


def product(x: Tensor, bias: Tensor | None, added: Tensor | None, weight: Tensor, format: str, N: int) -> Tensor:
    """All contiguous, x, bias and added in float32. format: of FORMATS."""
    M, K = x.shape[:-1].numel(), x.shape[-1]
    y = x.new_empty(*x.shape[:-1], N)
    arguments = Linear(M, N, K, torch.get_num_threads(), FORMATS[format])
    given = {"x": x, "weight": weight, "bias": bias, "added": added, "y": y}
    native.point(arguments, **{name: z for name, z in given.items() if z is not None})
    native.run("linear", arguments)
    return y


def prepare_forward(x: Tensor, weight: Tensor, format: str, N: int) -> Callable[..., Tensor]:
    """`forward` of contiguous float32 operands like these."""
    K = x.shape[-1]
    arguments = Linear(x.shape[:-1].numel(), N, K, torch.get_num_threads(), FORMATS[readable(weight, format)[1]])
    call, shape = native.prepare("linear", arguments), (*x.shape[:-1], N)

    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None) -> Tensor:
        y = x.new_empty(shape)
        others = {name: z for name, z in (("bias", bias), ("added", added)) if z is not None}
        call.run(x=x, weight=weight, y=y, **others)
        return y

    return forward


def readable(weight: Tensor, format: str) -> tuple[Tensor, str]:
    """The weight as the kernels read it, and what that is: one of FORMATS. format: "" of a weight as it is."""
    if format:
        return weight, f"packed {format}"
    kept = weight if weight.dtype in native.DTYPES else weight.float()
    return kept.contiguous(), str(kept.dtype).removeprefix("torch.")


def backward(grads, x, weight, bias, added, format, N):
    K = x.shape[-1]
    dy = grads[0].float().contiguous()
    W, kind = (unpack(weight, format, N, K), "float32") if format else readable(weight, format)
    dx = product(dy, None, None, W, f"transposed {kind}", K).to(x.dtype)
    M = dy.shape[:-1].numel()
    flat, dweight = dy.view(M, N), []
    if not format:
        rows = x.reshape(M, K).float().contiguous()
        dweight = [product(flat.mT.contiguous(), None, None, rows, "transposed float32", K).to(weight.dtype)]
    dbias = [] if bias is None else [flat.sum(0).to(bias.dtype)]
    return [dx, *dweight, *dbias, *([] if added is None else [dy.to(added.dtype)])]


def unpack(weight: Tensor, format: str, N: int, K: int, rows: Tensor | None = None) -> Tensor:
    """[N, K] float32, or some rows of it. rows: int64, each at least 0 and below N."""
    M = N if rows is None else rows.numel()
    y = torch.empty(M, K)
    arguments = Linear(M, N, K, torch.get_num_threads(), FORMATS[f"packed {format}"])
    native.point(arguments, weight=weight, y=y, **({} if rows is None else {"rows": rows}))
    if y.numel():
        native.run("linear_unpack", arguments)
    return y


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` of few rows at the speed of reading the weight as it is. All float32 or all bfloat16, contiguous."""
    (N, K), M = weight.shape, x.shape[:-1].numel()
    y = x.new_empty(*x.shape[:-1], N)
    arguments = LinearFewRows(M, N, K, torch.get_num_threads(), x.dtype == torch.bfloat16)
    native.point(arguments, x=x, weight=weight, y=y, **({} if bias is None else {"bias": bias}))
    native.run("linear_few_rows", arguments)
    return y
