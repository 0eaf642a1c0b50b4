"""Whether kernels on a GPU can run here, ours in Triton or flash-linear-attention's, and which "auto" takes.

Found out without importing triton or fla where there is no GPU: that may fail without a driver, and takes its time.
"""

import json
import os
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

NOT_INSTALLED = "triton is not installed: pip install 'gated-deltanet[gpu]', on Linux"
NO_FLA = "flash-linear-attention is not installed: pip install 'gated-deltanet[fla]', on Linux"
NO_GPU = "torch finds no GPU (CUDA or ROCm)"
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
COMPILED = Path(__file__).with_name("compiled.json")


@lru_cache
def compiled() -> dict[str, Any]:
    """For which architectures and dtypes `make check-gpu-code` found nothing wrong: its tables are in results/gpu.

    {"triton": its version, "passed": {architecture: dtypes}}.
    """
    return json.loads(COMPILED.read_text())


def interpreted() -> bool:
    """Whether triton runs kernels in its interpreter, on the CPU: its own switch, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unusable() -> str | None:
    """None if our kernels can run on this machine, else the reason why not."""
    if find_spec("triton") is None:
        return NOT_INSTALLED
    return None if interpreted() else NO_GPU if not torch.cuda.is_available() else broken("triton")


def fla_unusable() -> str | None:
    """None if flash-linear-attention's kernels can run on this machine, else the reason why not."""
    if find_spec("fla") is None:
        return NO_FLA
    return NO_GPU if not torch.cuda.is_available() else broken("fla.ops.gated_delta_rule")


@lru_cache
def broken(module: str) -> str | None:
    """Why a module that is installed cannot be imported; asked only where there is a GPU."""
    try:
        import_module(module)
    except Exception as error:  # a driver, a compiler or another package may be missing or of a wrong version
        return f"import {module} fails: {error}"
    return None


def refusal(x: Tensor, reason: str | None) -> str | None:
    """None if kernels take operands like x, else the reason why not. reason: why they cannot run at all."""
    if reason:
        return f"cannot run: {reason}"
    if not (x.is_cuda or (x.is_cpu and interpreted())):
        return f"takes tensors on a GPU, these are on {x.device}"
    if x.dtype not in DTYPES:
        return f"takes float32, bfloat16 or float16, these tensors are {x.dtype}"
    return None


def preferred(x: Tensor) -> bool:
    """Whether "auto" takes our kernels for operands like x: on a GPU they are known to compile for."""
    if not x.is_cuda or refusal(x, unusable()):
        return False
    return DTYPES[x.dtype] in compiled()["passed"].get(architecture(x.device), ())


class Verdict(NamedTuple):
    """What "auto" takes on a GPU for an op that has kernels in Triton, and why."""

    gpu: str
    architecture: str
    auto: str
    why: str


def verdicts() -> list[Verdict]:
    """Of every GPU that torch finds."""
    found = []
    for index in range(torch.cuda.device_count()):
        name, kind = torch.cuda.get_device_name(index), architecture(torch.device("cuda", index))
        passed = compiled()["passed"]
        if reason := unusable():
            found.append(Verdict(name, kind, "torch", reason))
        elif kind in passed:
            why = f"compiled for {kind} with Triton {compiled()['triton']} ({', '.join(passed[kind])})"
            found.append(Verdict(name, kind, "triton", f"{why}, right in its interpreter, not yet run on a GPU by us"))
        else:
            found.append(
                Verdict(name, kind, "torch", f"our kernels are compiled for {', '.join(passed)} in tests only")
            )
    return found


def architecture(device: torch.device) -> str:
    """As Triton and the makers call it: sm_90, gfx942. The interpreter is one more of the first kind."""
    if device.type != "cuda":
        return next(iter(compiled()["passed"]))
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"
