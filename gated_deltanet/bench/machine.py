"""What this machine is and can do: printed by `gdn doctor`, recorded beside every benchmark result."""

import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gated_deltanet import ops
from gated_deltanet.ops import gpu, native
from gated_deltanet.ops.gated_delta_rule import tuned_tiles
from gated_deltanet.plan.devices import memory_bytes

CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd", "asimdhp", "bf16", "i8mm", "sve")
EXTRA_OF = {  # optional package: the extra that brings it
    "transformers": "hf",
    "accelerate": "hf",
    "lm-eval": "eval",
    "datasets": "data",
    "pyarrow": "data",
    "mistral-common": "data",
    "tensorboard": "track",
    "gguf": "gguf",
    "onnx": "onnx",
    "triton": "gpu",
    "flash-linear-attention": "fla",
}


def describe() -> dict[str, Any]:
    """All of it as plain JSON values; None where the machine does not tell."""
    return {
        "version": version("gated-deltanet"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": describe_torch(),
        "cpu": describe_cpu(),
        "memory_bytes": memory_bytes(),
        "compiler": compiler(),
        "native": {"instruction_set": native.instruction_set(), "unusable": native.unusable()},
        "packages": {package: version_of(package) for package in EXTRA_OF},
        "backends": ops.backends(),
        "gpus": [verdict._asdict() for verdict in gpu.verdicts()],
        "tuned_tiles": list(tuned_tiles.tuned()),
    }


def record(settings: dict[str, Any]) -> dict[str, Any]:
    """What stands beside the rows of a benchmark. load: programs that ran at the same time in the last minute."""
    return {
        "machine": describe(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "settings": settings,
    }


def describe_torch() -> dict[str, Any]:
    return {
        "version": str(torch.__version__),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
    }


def describe_cpu() -> dict[str, Any]:
    info = cpuinfo()
    flags = (info.get("flags") or info.get("Features") or "").split()  # x86 or Arm
    return {
        "model": info.get("model name") or brand() or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
    }


def cpuinfo() -> dict[str, str]:
    """What Linux says of the first processor; empty elsewhere."""
    if not CPUINFO.exists():
        return {}
    first = CPUINFO.read_text().strip().partition("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def brand() -> str | None:
    """The processor's name on macOS."""
    if sys.platform != "darwin":
        return None
    sysctl = ["sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(sysctl, capture_output=True, text=True, check=False).stdout.strip() or None


def cores() -> int | None:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def compiler() -> str | None:
    """The C++ compiler torch.compile would call, chosen as it chooses."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
