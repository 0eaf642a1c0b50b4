"""What runs can be planned for: GPUs as their makers describe them, and this machine's memory."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gated_deltanet.naming import unknown

TERA, GIGA, GB = 1e12, 1e9, 1e9
MEMINFO = Path("/proc/meminfo")


class GPU(NamedTuple):
    """Dense bfloat16 products, links in one direction."""

    flops: float  # peak FLOP/s
    memory: float  # bytes
    bandwidth: float  # of memory, bytes/s
    link: float  # to the GPUs of the same node, bytes/s
    network: float  # each GPU's share of its node's network cards, bytes/s
    per_node: int = 8


GPUS = {
    # NVIDIA H100 data sheet, SXM: 1,979 TFLOPS with sparsity, NVLink 900 GB/s both ways; DGX H100: 8 × 400 Gb/s
    "h100": GPU(989 * TERA, 80 * GB, 3350 * GIGA, 450 * GIGA, 50 * GIGA),
    # NVIDIA H200 data sheet, SXM: as H100, with 141 GB at 4.8 TB/s
    "h200": GPU(989 * TERA, 141 * GB, 4800 * GIGA, 450 * GIGA, 50 * GIGA),
    # NVIDIA DGX B200 data sheet, per GPU: 4.5 PFLOPS with sparsity, NVLink 1.8 TB/s both ways; 8 × 400 Gb/s
    "b200": GPU(2250 * TERA, 180 * GB, 8000 * GIGA, 900 * GIGA, 50 * GIGA),
    # NVIDIA A100 data sheet, SXM 80 GB: 312 TFLOPS, 2,039 GB/s, NVLink 600 GB/s both ways; DGX A100: 8 × 200 Gb/s
    "a100": GPU(312 * TERA, 80 * GB, 2039 * GIGA, 300 * GIGA, 25 * GIGA),
    # NVIDIA L40S data sheet: 362 TFLOPS, 48 GB, 864 GB/s, PCIe 4 × 16; assumed: nodes of 8 with 200 Gb/s
    "l40s": GPU(362 * TERA, 48 * GB, 864 * GIGA, 32 * GIGA, 3.1 * GIGA),
    # NVIDIA Ada white paper, RTX 4090: 165 TFLOPS with float32 sums, PCIe 4 × 16; assumed: hosts of 4 with 10 Gb/s
    "rtx4090": GPU(165 * TERA, 24 * GB, 1008 * GIGA, 32 * GIGA, 0.3 * GIGA, per_node=4),
    # AMD MI300X data sheet: 1,307 TFLOPS, 192 GB, 5.3 TB/s, 7 links of 64 GB/s each way; 8 × 400 Gb/s
    "mi300x": GPU(1307 * TERA, 192 * GB, 5300 * GIGA, 448 * GIGA, 50 * GIGA),
}


def get_gpu(name: str) -> GPU:
    if name not in GPUS:
        raise unknown("--gpu", name, GPUS)
    return GPUS[name]


def memory_bytes() -> int | None:
    """All memory of this machine. None where the system does not tell."""
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int | None:
    """The memory that no program uses now. None where the system does not tell: all but Linux."""
    with suppress(OSError):
        return kilobytes(MEMINFO, "MemAvailable") * 1024
    return None


def kilobytes(file: Path, name: str) -> int:
    """The number in the line `name: 1234 kB` of a file of /proc."""
    (line,) = (line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
