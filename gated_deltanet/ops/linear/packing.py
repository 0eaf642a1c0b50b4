"""Weights of few bits: rounding them, and the order in which a product reads them."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import native
from .reference import QUANTISED, SCALES, SIDE, in_rows, scales, unpack, whole_int4, whole_int8

BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}  # of a number
FORMATS = tuple(BITS)
CANDIDATES = 16  # scales of a block of int4 that are tried


class PackedWeight(NamedTuple):
    """A weight [N, K] as `linear` reads it from end to end. csrc/linear.h tells the order of its bytes."""

    data: Tensor  # uint8
    format: str  # of FORMATS
    shape: tuple[int, int]

    def to_dense(self) -> Tensor:
        """[N, K] float32, exactly."""
        return unpack(self.data, self.format, *self.shape)


class Quantised(NamedTuple):
    """A weight as scale · whole number, a scale for every 32 inputs of an output; K is filled up to blocks of 32."""

    whole: Tensor  # [N, K] int8
    scale: Tensor  # [N, K / 32] float16


def pack(weight: Tensor | Quantised, format: str, K: int | None = None) -> PackedWeight:
    """weight: [N, K], of floating-point numbers, which int8 and int4 round (`quantise`), or rounded before.

    K: of a weight rounded before, if it was filled up.
    """
    if format not in FORMATS:
        raise ValueError(f"pack: format is {format!r}, expected one of {', '.join(FORMATS)}")
    if isinstance(weight, Quantised):
        shape = len(weight.whole), weight.whole.shape[1] if K is None else K
        return PackedWeight(in_large_pages(pack_whole(weight, format)), format, shape)
    N, K = weight.shape
    if not N or not K:
        return PackedWeight(torch.empty(0, dtype=torch.uint8), format, (N, K))
    blocks = pack_whole(quantise(weight, format), format) if format in QUANTISED else pack_floats(weight, format)
    return PackedWeight(in_large_pages(blocks), format, (N, K))


def packed_bytes(format: str, N: int, K: int) -> int:
    scales = SCALES if format in QUANTISED else 0
    return -(-N // SIDE) * -(-K // SIDE) * (scales + SIDE * SIDE * BITS[format] // 8)


def whole_of(weight: PackedWeight) -> Quantised:
    """The whole numbers and scales of a weight of int8 or int4, as `quantise` made them."""
    N, K = weight.shape
    blocks = weight.data.view(-(-N // SIDE), -(-K // SIDE), -1)
    whole = (whole_int8 if weight.format == "int8" else whole_int4)(blocks)
    return Quantised(in_rows(whole)[:N], in_rows(scales(blocks))[:N].half())


def pack_floats(weight: Tensor, format: str) -> Tensor:
    blocks = in_blocks(weight.float() if format == "float32" else weight.bfloat16())
    if format == "bfloat16":
        blocks = blocks.unflatten(2, (-1, 2)).transpose(-1, -2)  # neighbours along the inputs side by side
    return as_bytes(blocks)


def pack_whole(weight: Quantised, format: str) -> Tensor:
    whole, scales = in_blocks(weight.whole), in_blocks(weight.scale, 1)  # [panels, blocks, inputs, outputs]
    if format == "int4":
        first, second = (whole + 8).to(torch.uint8).unflatten(2, (4, 2, 4)).unbind(3)
        words = first | second << 4  # [panels, blocks, eights of inputs, bytes, outputs]
    else:
        words = whole.unflatten(2, (8, 4))
    whole = words.transpose(-1, -2)
    parts = [x.contiguous().flatten(2).view(torch.uint8) for x in (scales, whole)]
    return torch.cat(parts, -1).flatten()


def in_blocks(x: Tensor, inputs: int = SIDE) -> Tensor:
    """[N, K] -> [panels, blocks, inputs, SIDE outputs], filled up with zeros."""
    N, K = x.shape
    x = F.pad(x, (0, -K % inputs, 0, -N % SIDE))
    return x.view(x.shape[0] // SIDE, SIDE, x.shape[1] // inputs, inputs).permute(0, 2, 3, 1)


def as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8)


def in_large_pages(data: Tensor) -> Tensor:
    """A copy that is faster to read from end to end, where the system has such pages."""
    library = native.loaded()
    if library is None or data.device.type != "cpu" or not data.numel():
        return data
    copy = torch.empty_like(data)
    library.gdn_use_large_pages(copy.data_ptr(), copy.numel())
    return copy.copy_(data)


def quantise(weight: Tensor, format: str) -> Quantised:
    """Round to scale · whole number. int8: the largest in size of a block becomes ±127. int4: from −8 to 7, with the
    scale of several around the largest / −8 that errs least in squares.
    """
    blocks = F.pad(weight.float(), (0, -weight.shape[1] % SIDE)).unflatten(-1, (-1, SIDE))  # [N, K / 32, 32]
    if not blocks.isfinite().all():
        raise ValueError(f"quantise: the weight holds numbers that are not finite, expected none for {format}")
    if format == "int8":
        scale = half(blocks.abs().amax(-1, keepdim=True) / 127)
        return Quantised(rounded(blocks, scale, -127, 127).flatten(1), scale.half().squeeze(-1))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8
    best, least = half(largest), torch.full_like(largest, torch.inf)
    for i in range(CANDIDATES):
        scale = half(largest * (0.7 + 0.6 * i / (CANDIDATES - 1)))
        error = (rounded(blocks, scale, -8, 7) * scale - blocks).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return Quantised(rounded(blocks, best, -8, 7).flatten(1), best.half().squeeze(-1))


def half(scale: Tensor) -> Tensor:
    """As it will be read; within what half precision can hold."""
    largest = torch.finfo(torch.float16).max
    return scale.clamp(-largest, largest).half().float()


def rounded(blocks: Tensor, scale: Tensor, least: int, most: int) -> Tensor:
    inverse = torch.where(scale == 0, 0, 1 / scale)
    return (blocks * inverse).round().clamp(least, most).to(torch.int8)
