"""The linear map as it is written, and how a packed weight is read: the specification every other form is held to."""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32  # outputs of a panel, inputs of a block (csrc/linear.h)
SCALES = 2 * SIDE  # bytes
QUANTISED = ("int8", "int4")


def forward(x, weight, bias, added, format, N):
    """weight: [N, K], or its packed bytes in the format named; "" for a weight as it is.

    With weights of whole numbers x is rounded to whole numbers, too; its gradient is that of x as it was.
    """
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    W = weight if format == "" else unpack(weight, format, N, x.shape[-1])
    if format in QUANTISED:
        x = x + (rounded(x.detach().float()) - x).detach()
    y = x.to(dtype) @ W.to(dtype).mT
    y = y if bias is None else y + bias.to(dtype)
    return (y if added is None else y + added.to(dtype)).to(x.dtype)


def rounded(x: Tensor) -> Tensor:
    """Blocks of 32 inputs as scale · whole number, the largest in size ±127. x: [..., K] float32."""
    K = x.shape[-1]
    blocks = F.pad(x, (0, -K % SIDE)).unflatten(-1, (-1, SIDE))
    scale = blocks.abs().amax(-1, keepdim=True) / 127 if K else blocks
    return torch.where(scale == 0, 0, (blocks / scale).round() * scale).flatten(-2)[..., :K]


def unpack(data: Tensor, format: str, N: int, K: int) -> Tensor:
    """[N, K] float32, exactly what the bytes say."""
    panels, blocks = -(-N // SIDE), -(-K // SIDE)
    if not panels or not blocks:
        return torch.zeros(N, K, device=data.device)
    return in_rows(READERS[format](data.view(panels, blocks, -1)))[:N, :K]


def in_rows(W: Tensor) -> Tensor:
    """[panels, blocks, inputs, outputs] -> [all outputs, all inputs]."""
    return W.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)


def read_float32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32).unflatten(-1, (SIDE, SIDE))


def read_bfloat16(blocks: Tensor) -> Tensor:
    pairs = blocks.view(torch.bfloat16).unflatten(-1, (SIDE // 2, SIDE, 2))
    return pairs.transpose(-1, -2).flatten(-3, -2).float()


def read_int8(blocks: Tensor) -> Tensor:
    return whole_int8(blocks) * scales(blocks)


def whole_int8(blocks: Tensor) -> Tensor:
    words = blocks[..., SCALES:].contiguous().view(torch.int8).unflatten(-1, (8, SIDE, 4))  # quads of inputs, outputs
    return words.transpose(-1, -2).flatten(-3, -2)


def read_int4(blocks: Tensor) -> Tensor:
    return whole_int4(blocks) * scales(blocks)


def whole_int4(blocks: Tensor) -> Tensor:
    pairs = blocks[..., SCALES:].unflatten(-1, (4, SIDE, 4))  # eights of inputs, outputs, bytes
    whole = torch.cat([pairs & 15, pairs >> 4], -1)  # eights, outputs, inputs
    return whole.transpose(-1, -2).flatten(-3, -2).to(torch.int8) - 8


def scales(blocks: Tensor) -> Tensor:
    """[panels, blocks, 1, outputs]."""
    return blocks[..., :SCALES].contiguous().view(torch.float16).float()[..., None, :]


READERS = {"float32": read_float32, "bfloat16": read_bfloat16, "int8": read_int8, "int4": read_int4}
