"""Two test processes share the cores: one thread each, unless asked otherwise."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest
import torch

from gated_deltanet.ops import native
from gated_deltanet.ops.checks import unusable

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=40)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--native", type=Path, help="test this library of native kernels instead of the installed one")
    parser.addoption("--instruction-set", help="of the native kernels: portable, avx2, avx512 or avx512bf16")
    parser.addoption("--threads", type=int, default=1, help="of torch and the native kernels")


def pytest_configure(config):
    torch.set_num_threads(config.getoption("threads"))
    os.environ["OMP_NUM_THREADS"] = str(config.getoption("threads"))  # of the processes that tests start
    if path := config.getoption("native"):
        native.load(path.absolute())
        if reason := native.unusable():
            raise pytest.UsageError(reason)
    if (name := config.getoption("instruction_set")) and not native.use_instruction_set(name):
        raise pytest.UsageError(f"--instruction-set {name}: the native library or this processor lacks it")


def pytest_collection_finish():
    """What is imported by now stays: without this each `gc.collect` looks through it, 0.3 s long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed():
    """A test draws the same numbers whichever tests ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def skip_unusable_backends(request):
    """Tests name the backend they run in the parameter `form` or `backend`."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    for name in (parameters.get("form"), parameters.get("backend")):
        if isinstance(name, str) and (reason := unusable(name)):
            pytest.skip(f"backend {name}: {reason}")
        if isinstance(name, str) and name.startswith(("triton", "fla")):
            pytest.skip(f"backend {name}: tests/gpu, on a GPU or in the interpreter")


@pytest.fixture(params=native.INSTRUCTION_SETS)
def instruction_set(request):
    """Every one that this build and this processor have, in turn."""
    if native.unusable():
        pytest.skip(str(native.unusable()))
    before = native.instruction_set()
    if not native.use_instruction_set(request.param):
        pytest.skip(f"this processor or this build has no {request.param}")
    yield request.param
    native.use_instruction_set(str(before))


@pytest.fixture
def restored_threads():
    """For a test that changes their number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
