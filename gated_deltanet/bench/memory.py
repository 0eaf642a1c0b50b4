"""Memory of this process as the system sees it, whoever allocated it: torch, native kernels or another library."""

import ctypes
import gc
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from gated_deltanet.plan.devices import kilobytes

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # glibc's names for mallopt: M_TRIM_THRESHOLD, M_MMAP_MAX


def peak_bytes(call: Callable[[], object]) -> int | None:
    """The most memory `call` held at once, results included. None where the system does not tell: all but Linux."""
    gc.collect()
    if glibc := c_library():
        glibc.malloc_trim(0)
    with suppress(OSError):
        CLEAR_REFS.write_text("5")  # the high-water mark starts anew
        before = kilobytes(STATUS, "VmRSS")
        call()
        return max(0, kilobytes(STATUS, "VmHWM") - before) * 1024
    return None


def peak_bytes_on_gpu(call: Callable[[], object], device: str) -> int:
    """The same of a GPU's memory, as torch has allocated it."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before)


@contextmanager
def no_page_faults() -> Iterator[bool]:
    """Freed memory stays with the process: only the first calls pay for page faults. Yields False without glibc."""
    glibc = c_library()
    if glibc:
        glibc.mallopt(MMAP_MAX, 0)
        glibc.mallopt(TRIM_THRESHOLD, -1)  # never
    try:
        yield glibc is not None
    finally:
        if glibc:
            glibc.mallopt(MMAP_MAX, 65536)
            glibc.mallopt(TRIM_THRESHOLD, 128 * 1024)
            glibc.malloc_trim(0)


def c_library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
