"""The tiles of the kernels, fixed: no call stalls to tune them, and no tuner changes results."""

from typing import NamedTuple


class Tiles(NamedTuple):
    """Sizes of tiles, powers of two, and the warps and pipeline stages of each kernel."""

    C: int  # tokens of a chunk
    width: int  # columns of keys or values that a kernel of one chunk takes at a time
    rows: int  # d_k, rounded up
    columns: int  # columns of values that a pass of the state takes
    warps: int
    stages: int


def chunk_size(d_k: int) -> int:
    """About as long as keys are wide, 16 to 64: longer chunks cost more, and their triangular systems round worse."""
    return min(rounded_up(d_k), 64)


def rounded_up(d: int) -> int:
    """To a power of two that a tensor core takes."""
    return max(1 << (d - 1).bit_length(), 16)


def how_many(whole: int, tile: int) -> int:
    """Tiles that cover the whole."""
    return -(-whole // tile)


def tiles(d_k: int, d_v: int) -> Tiles:
    width, columns = min(rounded_up(max(d_k, d_v)), 64), min(rounded_up(d_v), 32)
    return Tiles(chunk_size(d_k), width, rounded_up(d_k), columns, warps=8, stages=2)
