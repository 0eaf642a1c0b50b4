import platform
import resource
from pathlib import Path

import pytest
import torch

from gated_deltanet.bench import memory
from gated_deltanet.plan import devices

MEBIBYTE = 2**20
linux = pytest.mark.skipif(platform.system() != "Linux", reason="Linux tells, others do not")


@linux
def test_peak_counts_what_is_freed_again():
    def call():
        torch.ones(40 * MEBIBYTE, dtype=torch.uint8)
        return torch.ones(10 * MEBIBYTE, dtype=torch.uint8)

    peak = memory.peak_bytes(call)
    if peak is None:
        pytest.skip("the high-water mark of memory cannot be set back here")
    assert 39 * MEBIBYTE < peak < 60 * MEBIBYTE


def test_peak_is_none_where_the_system_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CLEAR_REFS", Path("absent", "file"))
    assert memory.peak_bytes(lambda: None) is None
    monkeypatch.setattr(devices, "MEMINFO", tmp_path / "absent")
    assert devices.available_bytes() is None


@pytest.mark.skipif(memory.c_library() is None, reason="glibc only")
def test_page_faults_are_kept_out():
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(64 * MEBIBYTE, dtype=torch.uint8)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with memory.no_page_faults() as kept_out:
        counts = [faults() for _ in range(20)]
    assert kept_out
    assert min(counts) < 64 * MEBIBYTE / resource.getpagesize() / 10  # the heap grows for some calls, then fits


def test_without_glibc_nothing_is_promised(monkeypatch):
    monkeypatch.setattr(memory, "c_library", lambda: None)
    with memory.no_page_faults() as kept_out:
        assert not kept_out
