"""Triton's interpreter made as exact, and as inexact, as a GPU: for tests of kernels on machines without one.

The interpreter (of 3.7 to 3.9) takes the bits of bfloat16 for integers in `tl.dot`, cuts bfloat16 off instead of
rounding it, and computes tf32 in full. Here bfloat16 is right, and tf32 loses the bits that tensor cores do not read.
And every address is checked: a kernel that reads or writes outside of the tensors it was given raises.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that tf32 has


def make_faithful() -> None:
    """From now on, in this process."""
    builder: Any = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    builder.create_dot = create_dot
    builder.cast_impl = cast_impl(builder.cast_impl)
    builder.create_masked_load = checked(builder.create_masked_load, mask=1)
    builder.create_masked_store = checked(builder.create_masked_store, mask=2)
    executor._init_args_hst = remember_tensors(executor._init_args_hst)


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    a, b = (as_read(x, input_precision.name == "TF32") for x in (a, b))
    return interpreter.TensorHandle(np.matmul(a, b) + d.data, d.dtype.scalar)


def as_read(x: Any, tf32: bool) -> np.ndarray:
    """An operand in float32, as a tensor core reads it."""
    if x.dtype.scalar == tl.bfloat16:
        return (x.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if x.dtype.scalar == tl.float32 and tf32:
        return (x.data.view(np.uint32) & TF32).view(np.float32)
    return x.data.astype(np.float32)


def cast_impl(plain):
    def cast(self, x, dtype):
        if (x.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return plain(self, x, dtype)
        rounded = torch.from_numpy(np.ascontiguousarray(x.data)).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(rounded, tl.bfloat16)

    return cast


tensors: list[torch.Tensor] = []  # of the launch that runs


def remember_tensors(plain):
    def arguments(self, given, named):
        tensors[:] = [x for x in (*given, *named.values()) if isinstance(x, torch.Tensor)]
        return plain(self, given, named)

    return arguments


def checked(plain, mask: int):
    """A masked load or store whose addresses lie within the tensors of the launch. mask: its place in the arguments."""

    def access(self, addresses, *arguments):
        used = addresses.data[arguments[mask - 1].data.astype(bool)]
        inside = np.zeros(used.shape, dtype=bool)
        for x in tensors:
            first = np.uint64(x.data_ptr())
            inside |= (used >= first) & (used < first + np.uint64(extent(x)))
        assert inside.all(), f"{np.count_nonzero(~inside)} addresses are outside of the tensors given to the kernel"
        return plain(self, addresses, *arguments)

    return access


def extent(x: torch.Tensor) -> int:
    """Bytes from the first number of x to behind its last, whatever its strides."""
    if x.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size()
