"""The tiles of the kernels, fixed: no call stalls to tune them, and no tuner changes results unasked."""

from typing import NamedTuple

import torch

from ..launches import rounded_up

# Bytes of a chunk's keys: two stages of K, W and Q then fit into 64 KiB (AMD) and 164 KiB; on Hopper tensor cores want
# chunks of 64 for keys of 256, too.
KEYS, KEYS_ON_HOPPER = 16 * 1024, 32 * 1024


class Tiles(NamedTuple):
    """Sizes of tiles, powers of two, and the warps and pipeline stages of each kernel."""

    C: int  # tokens of a chunk
    width: int  # columns of keys or values that a kernel of one chunk takes at a time
    rows: int  # d_k, rounded up
    columns: int  # columns of values that a pass of the state takes
    outputs: int  # and that the kernel of outputs takes
    warps: dict[str, int]
    stages: dict[str, int]

    def options(self, kernel: str) -> dict[str, int]:
        return {"num_warps": self.warps.get(kernel, 4), "num_stages": self.stages.get(kernel, 2)}


def tiles(d_k: int, d_v: int, dtype: torch.dtype, architecture: str) -> Tiles:
    ampere, hopper, amd = architecture == "sm_80", architecture in ("sm_90", "sm_100"), architecture.startswith("gfx")
    rows, size, narrow = rounded_up(d_k), dtype.itemsize, max(d_k, d_v) <= 64
    keys = (KEYS_ON_HOPPER if hopper and size == 2 else KEYS) // (rows * size)
    longest = 64 if size == 2 else 32  # the inverse of 64 × 64 in products of three parts spills
    C = min(rows, longest, max(keys, 16))  # longer than keys are wide costs more, and rounds worse
    warps = {
        "score_gradients": 8,  # three tiles C × C beside what is read: 4 warps spill
        "key_gradients": 4 if amd and rows > 128 else 8,  # three tiles C × width; AMD gives 8 half of its registers
        "state_pass": 8 if rows * size > 256 - ampere and not amd else 4,  # as many more rows or bytes of the state
        "state_pass_backward": 4 if amd else 8,  # on NVIDIA 4 spill; AMD's have 512 registers, and 8 get half of them
    }
    # of float32 three parts of each operand are in registers, of 256 rows twice as many
    columns = 16 if size == 4 or C * rows * size > KEYS else 32
    stages = {}
    if C * rows * size > KEYS:
        stages = {"state_pass": 1, "state_pass_backward": 1}  # or two stages of K, W and Q are more than 227 KiB
    elif amd and rows > 128:
        stages = {"state_pass_backward": 1}  # 66 KiB with 2
    elif ampere and narrow:
        stages = {"state_pass": 3}  # with 2, ptxas takes 168 registers and spills
    if architecture == "sm_90" and size == 4 and not narrow:
        stages["key_gradients"] = 1  # with 2, 16 bytes are spilled
    # a loop of one round is unrolled, and all of it alive at once
    most = 32 if size == 4 or (ampere and narrow) else 64
    width = min(rounded_up(max(d_k, d_v)), most)
    outputs = min(width, 32) if ampere else width  # where operands of products are in registers: both parts of U
    return Tiles(C, width, rows, min(rounded_up(d_v), columns), outputs, warps, stages)
