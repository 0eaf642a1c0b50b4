"""Tensors at addresses torch would not choose: it allocates at multiples of 64 bytes, files and slices do not."""

import torch

ALIGNMENT = 64  # bytes


def displaced(x: torch.Tensor, elements: int) -> torch.Tensor:
    """A contiguous copy of x that begins so many elements behind a multiple of 64 bytes."""
    room = torch.empty(x.numel() + elements + ALIGNMENT, dtype=x.dtype)
    first = -room.data_ptr() % ALIGNMENT // x.element_size() + elements
    y = room[first : first + x.numel()].view(x.shape).copy_(x)
    assert y.data_ptr() % ALIGNMENT == elements * x.element_size() % ALIGNMENT
    return y


def is_aligned(x: torch.Tensor) -> bool:
    return x.data_ptr() % ALIGNMENT == 0
