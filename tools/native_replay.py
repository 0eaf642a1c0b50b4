"""Test every native kernel without Python around it: each instruction set of this machine, and ARM in an emulator.

    python tools/native_replay.py [--json FILE]

tools/native_cases.py writes cases into build/, and tests/native/driver.cpp replays them on one, two and three threads.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from native_cases import write_cases

from gated_deltanet.ops import native

ROOT = Path(__file__).parents[1]
CASES, HOST, ARM = (ROOT / "build" / name for name in ("cases", "driver", "aarch64"))
THREADS = (1, 2, 3)
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = ("qemu-aarch64", "-cpu", "cortex-a53", "-L", "/usr/aarch64-linux-gnu")  # the plainest 64-bit ARM
PACKAGES = {CROSS_COMPILER: "g++-aarch64-linux-gnu", EMULATOR[0]: "qemu-user", "cmake": "cmake"}  # Debian's names


def build_driver(compiler: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    driver = folder / "driver"
    source = ROOT / "tests" / "native" / "driver.cpp"
    subprocess.run([compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", source, "-o", driver, "-ldl"], check=True)
    return driver


def build_for_arm() -> Path:
    """The library, compiled as it would be on an ARM machine."""
    target = [f"-DCMAKE_{name}" for name in ("SYSTEM_NAME=Linux", "SYSTEM_PROCESSOR=aarch64")]
    configure = ["cmake", "-S", ROOT, "-B", ARM, *target, f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}"]
    for command in (configure, ["cmake", "--build", ARM, "--parallel", "2"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return ARM / "libgdn.so"


def replay(processor: str, instruction_set: str, driver: list[str | Path], library: Path) -> dict[str, Any]:
    """Run all cases, print what failed, and count by kernel."""
    cases = sorted(path.name for path in CASES.glob("*.case"))
    command = [*driver, library, instruction_set, ",".join(map(str, THREADS)), *cases]
    done = subprocess.run(command, cwd=CASES, stdout=subprocess.PIPE, text=True, check=False)
    kernels = {}
    for line in done.stdout.splitlines():
        if counts := re.fullmatch(r"(\w+): (\d+) passed, (\d+) failed", line):
            kernels[counts[1]] = {"passed": int(counts[2]), "failed": int(counts[3])}
        else:
            print(f"{processor}, {instruction_set}: {line}", flush=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{processor}, {instruction_set}: the driver ended with status {done.returncode}, expected 0 or 1")
    counts = {name: sum(kernel[name] for kernel in kernels.values()) for name in ("passed", "failed")}
    named = {"processor": processor, "instruction_set": instruction_set, "threads": THREADS}
    return {**named, **counts, "kernels": kernels}


def replay_here() -> list[dict[str, Any]]:
    """For each instruction set this processor has."""
    library, driver = native.installed(), build_driver("g++", HOST)
    sets = native.usable_instruction_sets()
    return [replay(platform.machine(), name, [driver], Path(str(library))) for name in sets]


def replay_on_arm() -> list[dict[str, Any]]:
    if missing := [f"{name} (package {PACKAGES[name]})" for name in PACKAGES if not shutil.which(name)]:
        reason = f"{' and '.join(missing)} not installed"
        print(f"aarch64 is skipped: {reason}")
        return [{"processor": "aarch64, emulated", "skipped": reason}]
    library, driver = build_for_arm(), build_driver(CROSS_COMPILER, ARM)
    return [replay("aarch64, emulated", "portable", [*EMULATOR, driver], library)]


def replay_everywhere() -> list[dict[str, Any]]:
    write_cases(CASES)
    return [*replay_here(), *replay_on_arm()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write what passed and failed, by configuration and kernel")
    arguments = parser.parse_args()
    if reason := native.unusable():
        sys.exit(f"the kernels' calls cannot be recorded: {reason}")
    rows = replay_everywhere()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(row.get("failed") for row in rows))


if __name__ == "__main__":
    main()
