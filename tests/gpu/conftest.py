"""Kernels in Triton: on a GPU, or else in Triton's interpreter, which is chosen before triton is imported.

    TRITON_INTERPRET=1 python -m pytest tests/gpu

`tests/ops/test_triton.py` does this in a process of its own.
"""

import pytest

from gated_deltanet.ops import gpu

if gpu.unusable() is None and gpu.interpreted():
    import triton_interpreter

    triton_interpreter.make_faithful()


@pytest.fixture(autouse=True)
def skip_without_triton():
    if reason := gpu.unusable():
        pytest.skip(f"{reason}, and TRITON_INTERPRET is not 1: tests/ops/test_triton.py sets it")
