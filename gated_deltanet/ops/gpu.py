"""Whether kernels in Triton can run here: found out without importing triton, which only their own files do."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

NOT_INSTALLED = "triton is not installed: pip install 'gated-deltanet[gpu]', on Linux"
NO_GPU = "torch finds no GPU (CUDA or ROCm)"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# What `make check-gpu-code` compiles every kernel for: "auto" takes them nowhere else.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")


def interpreted() -> bool:
    """Whether triton runs kernels in its interpreter, on the CPU: its own switch, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unusable() -> str | None:
    """None if kernels can run on this machine, else the reason why not."""
    if find_spec("triton") is None:
        return NOT_INSTALLED
    return None if interpreted() or torch.cuda.is_available() else NO_GPU


def refusal(x: Tensor) -> str | None:
    """None if the kernels take operands like x, else the reason why not."""
    if reason := unusable():
        return f"cannot run: {reason}"
    if not (x.is_cuda or (x.is_cpu and interpreted())):
        return f"takes tensors on a GPU, these are on {x.device}"
    if x.dtype not in DTYPES:
        return f"takes float32, bfloat16 or float16, these tensors are {x.dtype}"
    return None


def preferred(x: Tensor) -> bool:
    """Whether "auto" takes the kernels for operands like x: on a GPU they are known to compile for."""
    return x.is_cuda and refusal(x) is None and architecture(x.device) in ARCHITECTURES


def architecture(device: torch.device) -> str:
    """As Triton and the makers call it: sm_90, gfx942. The interpreter is one more of the first kind."""
    if device.type != "cuda":
        return ARCHITECTURES[0]
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"
