"""Kernels in Triton without a GPU: in the interpreter, in a process of their own, and how a machine is judged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gated_deltanet import ops
from gated_deltanet.ops import gpu
from gated_deltanet.ops.gated_delta_rule import choose

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(gpu.unusable() == gpu.NOT_INSTALLED, reason=gpu.NOT_INSTALLED)
def test_kernels_are_right_in_the_interpreter():
    tests = [sys.executable, "-m", "pytest", "tests/gpu", "-x", "-p", "no:cacheprovider"]
    run = subprocess.run(tests, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


def test_triton_is_not_imported_where_it_is_not_used():
    code = (
        "import sys, gated_deltanet.ops as o; o.backends(); o.gpu.verdicts(); print({'triton', 'fla'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_a_machine_without_triton_or_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setattr(gpu, "interpreted", lambda: False)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert ops.backends()["gated_delta_rule"]["triton"] == gpu.NOT_INSTALLED
    monkeypatch.setattr(gpu, "find_spec", lambda name: "found")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ops.backends()["gated_delta_rule"]["triton"] == gpu.NO_GPU
    x = torch.zeros(1, 2, 1, 3)
    with pytest.raises(ValueError, match=r"backend 'triton' cannot run: torch finds no GPU"):
        ops.gated_delta_rule(x, x, x, None, x[..., 0], backend="triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="backend 'triton' takes tensors on a GPU, these are on cpu"):
        ops.gated_delta_rule(x, x, x, None, x[..., 0], backend="triton")


def test_a_package_that_cannot_be_imported_is_no_crash(monkeypatch):
    monkeypatch.setattr(gpu, "interpreted", lambda: False)
    monkeypatch.setattr(gpu, "find_spec", lambda name: "found")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def without_driver(name):
        raise RuntimeError("0 active drivers")

    monkeypatch.setattr(gpu, "import_module", without_driver)
    gpu.broken.cache_clear()
    for backend in ("triton", "fla"):
        assert "fails: 0 active drivers" in str(ops.backends()["gated_delta_rule"][backend])
    gpu.broken.cache_clear()


@pytest.mark.parametrize(
    ("architecture", "installed", "auto", "why"),
    [
        ("sm_90", True, "triton", r"compiled for sm_90 with Triton .*, not yet run on a GPU"),
        ("sm_75", True, "torch", "our kernels are compiled for sm_80, sm_90, sm_100, gfx942 in tests only"),
        ("sm_90", False, "torch", "triton is not installed"),
    ],
)
def test_what_auto_takes_on_a_gpu_is_judged_with_a_reason(monkeypatch, architecture, installed, auto, why):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    monkeypatch.setattr(gpu, "architecture", lambda device: architecture)
    monkeypatch.setattr(gpu, "unusable", lambda: None if installed else gpu.NOT_INSTALLED)
    (verdict,) = gpu.verdicts()
    assert (verdict.gpu, verdict.architecture, verdict.auto) == ("Some GPU", architecture, auto)
    assert re.search(why, verdict.why)


class OnGPU(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda, is_cpu, device = True, False, torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("architecture", "L", "d_k", "dtype", "chosen"),
    [
        ("sm_90", 17, 128, torch.bfloat16, "triton"),
        ("sm_90", 16, 128, torch.bfloat16, "triton-recurrent"),
        ("sm_90", 1, 256, torch.float32, "triton-recurrent"),
        ("sm_90", 1, 257, torch.bfloat16, "chunkwise"),
        ("sm_90", 17, 128, torch.float64, "chunkwise"),
        ("sm_70", 17, 128, torch.float32, "chunkwise"),
    ],
)
def test_auto_takes_triton_on_architectures_it_is_compiled_for(monkeypatch, architecture, L, d_k, dtype, chosen):
    monkeypatch.setattr(gpu, "unusable", lambda: None)
    monkeypatch.setattr(gpu, "architecture", lambda device: architecture)
    q = torch.zeros(1, L, 1, d_k, dtype=dtype).as_subclass(OnGPU)
    forms = {name: name for name in ("reference", "chunkwise", "cpp", "triton", "triton-recurrent")}
    assert choose("gated_delta_rule", forms, "auto", q) == chosen
