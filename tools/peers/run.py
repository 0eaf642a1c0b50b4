"""Tests of other projects, from their checkouts, with our code in the place of theirs: `make test-peers`.

    python tools/peers/run.py --transformers DIR --fla DIR

transformers: its own tests of the models `accelerate_transformers` knows, with and without it, which have to pass
alike; and its common suites against our Hugging Face model, of which none may fail. FLA: its own tests of ops with
`interop.fla` in the place of its functions. Without a folder it says so and skips. The checkout has to be of the
version that is installed, of FLA any whose package can be imported.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "qwen4_exp")
FLA_TESTS = ("gdn", "gated_delta", "delta", "simple_gla", "retention", "gla")
KERNELS = "not tilelang and not intracard and not backend and not cp_ and not kernel"  # GPU-kernel internals


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--transformers", type=Path, help="a checkout of transformers")
    options.add_argument("--fla", type=Path, help="a checkout of flash-linear-attention")
    folders = options.parse_args()
    failed = []
    if folders.transformers is None:
        print("transformers: skipped, there is no folder: make test-peers TRANSFORMERS=DIR, a checkout of its sources")
    else:
        failed += transformers(checked(folders.transformers, "tests/test_modeling_common.py"))
    if folders.fla is None:
        print("FLA: skipped, there is no folder: make test-peers FLA=DIR, a checkout of its sources")
    else:
        failed += fla(checked(folders.fla, "tests/ops"))
    for test in failed:
        print(f"failed: {test}")
    return 1 if failed else 0


def checked(folder: Path, part: str) -> Path:
    if not (folder / part).exists():
        sys.exit(f"{folder} has no {part}, expected a checkout of the sources")
    return folder.resolve()


def transformers(folder: Path) -> list[str]:
    found = [folder / "tests/models" / name / f"test_modeling_{name}.py" for name in MODELS]
    tests = [str(file) for file in found if file.exists()]
    stock, accelerated = run(folder, tests), run(folder, tests, "accelerated")
    tell("transformers' gated delta models, stock", stock)
    tell("the same, accelerated", accelerated)
    worse = [name for name, outcome in accelerated.items() if outcome == "failed" and stock.get(name) != "failed"]
    common = run(folder, [str(HERE / "test_gdn_common.py")])
    tell("transformers' common suites, our model", common)
    return worse + [name for name, outcome in common.items() if outcome == "failed"]


def fla(folder: Path) -> list[str]:
    found = [folder / "tests/ops" / f"test_{name}.py" for name in FLA_TESTS]
    outcomes = run(folder, [str(file) for file in found if file.exists()], "ours_for_fla", "-k", KERNELS)
    tell("FLA's ops, by interop.fla", outcomes)
    return [name for name, outcome in outcomes.items() if outcome == "failed"]


def run(folder: Path, tests: list[str], plugin: str | None = None, *options: str) -> dict[str, str]:
    """What became of each test: passed, failed or skipped."""
    if not tests:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
        command += [
            "--rootdir",
            str(folder),
            "-c",
            str(folder / "pyproject.toml"),
        ]  # not ours, whose warnings are errors
        command += [*(("-p", plugin) if plugin else ()), f"--junitxml={report}", "-o", "junit_family=xunit1"]
        paths = os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([*command, *options, *tests], cwd=folder, env=environment, check=False)
        if not report.exists():
            return {f"pytest of {tests[0]} (exit {done.returncode})": "failed"}
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def tell(what: str, outcomes: dict[str, str]) -> None:
    counts = Counter(outcomes.values())
    print(f"{what}: {', '.join(f'{counts[name]} {name}' for name in ('passed', 'failed', 'skipped'))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
