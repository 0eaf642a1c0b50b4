"""silu(x) = x σ(x) and its slope, as kernels in Triton take them. In float32, for any x."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    small = tl.exp(-tl.abs(x))  # which cannot overflow
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    s = sigmoid(x)
    return s + x * s * (1.0 - s)
