"""Two test processes share the cores: one thread each."""

from pathlib import Path

import hypothesis
import pytest
import torch

from gated_deltanet.ops import native
from gated_deltanet.ops.checks import unusable

torch.set_num_threads(1)
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=40)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--native", type=Path, help="test this library of native kernels instead of the installed one")


def pytest_configure(config):
    if path := config.getoption("native"):
        native.load(path)
        if reason := native.unusable():
            raise pytest.UsageError(reason)


@pytest.fixture(autouse=True)
def skip_unusable_backends(request):
    """Tests name the backend they run in the parameter `form` or `backend`."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    for name in (parameters.get("form"), parameters.get("backend")):
        if isinstance(name, str) and (reason := unusable(name)):
            pytest.skip(f"backend {name}: {reason}")
