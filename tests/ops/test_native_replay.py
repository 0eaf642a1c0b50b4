"""Recorded calls of native kernels, replayed by tests/native/driver.cpp. Some of them: make test-arm replays all."""

import shutil
import subprocess
from functools import partial

import pytest
import torch
from native_cases import Case, rule_cases, scan_cases, step_cases, write_case
from native_replay import build_driver
from test_swiglu import random_inputs

from gated_deltanet.ops import native, swiglu

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("no g++ to compile tests/native/driver.cpp")
    return build_driver("g++", tmp_path_factory.mktemp("driver"))


@pytest.fixture
def replayed(driver, tmp_path):
    """What the driver prints about these cases."""

    def run(*cases):
        for case in cases:
            write_case(tmp_path, case, torch.float32)
        files = sorted(path.name for path in tmp_path.glob("*.case"))
        command = [driver, native.library()._name, native.instruction_set(), "1,2", *files]
        return subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()

    return run


def test_recorded_calls_give_what_the_reference_gives(replayed):
    lines = replayed(next(rule_cases("cpp")), next(scan_cases()), next(step_cases()))
    assert {
        "gated_delta_rule_forward: 2 passed, 0 failed",
        "gated_delta_rule_backward: 6 passed, 0 failed",
        "gated_delta_rule_step: 2 passed, 0 failed",
        "selective_scan_forward: 2 passed, 0 failed",
        "selective_scan_backward: 6 passed, 0 failed",
    } <= set(lines)


def test_a_result_beyond_its_budget_is_reported(replayed):
    form = partial(swiglu, backend="cpp")
    lines = replayed(Case("wrong", form, lambda gate, up: 1.00001 * swiglu(gate, up), random_inputs(3, 19)))
    assert lines[0].startswith("swiglu_forward, wrong, float32.case, output 0: error 1e-05, allowed ")
    assert "swiglu_forward: 0 passed, 1 failed" in lines
    assert "swiglu_backward: 0 passed, 2 failed" in lines


def test_a_kernel_without_a_case_is_reported(replayed):
    assert "short_conv_forward: no case calls it" in replayed(next(step_cases()))
