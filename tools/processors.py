"""make test-processors: what a processor may change, changed on purpose, and the tests run each time.

Our kernels' instruction set, those of torch, MKL and oneDNN, and the number of threads are combined so that every two
values meet. A cap counts only if it was seen to act here. results/processors.json keeps what each processor gave,
results/processors.md shows it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from hashlib import sha256
from itertools import combinations, product
from pathlib import Path
from typing import Any

from native_replay import replay_everywhere

from gated_deltanet.bench import machine
from gated_deltanet.ops import native

ROOT = Path(__file__).parents[1]
TESTS = ("tests/ops", "tests/layers", "tests/synthetic", "tests/train/test_resume.py", "tests/interop/test_folder.py")
MODELS = ("session", "generation", "model", "decoder", "draft", "weights")
TESTS += tuple(f"tests/models/test_{name}.py" for name in MODELS)
CAPS = {  # environment variables, read by the libraries when they start
    "torch": ("", "ATEN_CPU_CAPABILITY=avx2", "ATEN_CPU_CAPABILITY=default"),
    "MKL": (
        "",
        "MKL_ENABLE_INSTRUCTIONS=AVX2",
        "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
        "MKL_CBWR=COMPATIBLE",
        "MKL_CBWR=AVX2",
    ),
    "oneDNN": ("", "ONEDNN_MAX_CPU_ISA=AVX2", "ONEDNN_MAX_CPU_ISA=SSE41"),
}
THREADS = ("1", "2", "3")
PROBE = """if True:
    import torch
    a = torch.randn(64, 64)
    print("torch", torch.backends.cpu.get_cpu_capability())
    if torch.backends.mkl.is_available():
        with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
            a @ a
    a.bfloat16() @ a.bfloat16()  # which is oneDNN's where the processor has instructions for it
"""
SEEN = {  # what the probe prints that tells which code of a library runs
    "torch": r"^torch (\w+)",
    "MKL": r"for Intel\(R\) 64 architecture (.*?) processors|(CNR:[\w,]+)",
    "oneDNN": r"isa:(.*)|exec,cpu,\w+,([\w:.]+)",
}
SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error)")


def environment(caps: dict[str, str]) -> dict[str, str]:
    """What torch.compile keeps is kept apart: it would use code for the processor it was made on under any cap."""
    kept = ROOT / "build" / "inductor" / (caps.get("torch") or "none").replace("=", "-")
    assignments = [cap.split("=") for cap in caps.values() if cap]
    return {**os.environ, "OMP_WAIT_POLICY": "passive", "TORCHINDUCTOR_CACHE_DIR": str(kept), **dict(assignments)}


def seen(library: str, cap: str) -> str:
    """Which code of the library runs with this cap."""
    env = environment({library: cap}) | {"ONEDNN_VERBOSE": "1"}
    out = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True).stdout
    found = [match[match.lastindex or 0] for match in re.finditer(SEEN[library], out, re.MULTILINE)]
    return ", ".join(dict.fromkeys(found)) or "not used"


def effects() -> dict[str, dict[str, str]]:
    """What each cap makes each library run; without a cap under ""."""
    return {library: {cap: seen(library, cap) for cap in caps} for library, caps in CAPS.items()}


def effective(found: dict[str, str]) -> list[str]:
    """No cap, and of the caps that make other code run the first for each code."""
    first = {code: cap for cap, code in reversed(found.items())}
    return [cap for cap in found if first[found[cap]] == cap]


def pairwise_cover(values: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """Few combinations in which every two values of two different names meet: each time the one with most new pairs."""
    names = list(values)
    missing = {
        pair
        for a, b in combinations(names, 2)
        for pair in product([(a, x) for x in values[a]], [(b, x) for x in values[b]])
    }
    while missing:
        every = (dict(zip(names, each, strict=True)) for each in product(*values.values()))
        best = max(every, key=lambda each: len(missing & pairs(each)))
        missing -= pairs(best)
        yield best


def pairs(combination: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(combinations(combination.items(), 2))


def run_tests(combination: dict[str, str]) -> dict[str, Any]:
    """The summary of one run of the tests."""
    caps = {library: combination[library] for library in CAPS}
    options = ["--instruction-set", combination["kernels"], "--threads", combination["threads"]]
    command = [sys.executable, "-m", "pytest", "-n", "2", *TESTS, *options]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment(caps), cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {word: int(n) for n, word in SUMMARY.findall(done.stdout.splitlines()[-1] if done.stdout else "")}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if not counts.get("passed") or bool(done.returncode) != bool(failures):
        sys.exit(f"the tests could not be run with {combination}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return {**combination, **counts, "failures": failures, "seconds": round(time.perf_counter() - start)}


def processor() -> str:
    """Its name and what sets it apart from others of the same name."""
    cpu = machine.describe_cpu()
    return f"{cpu['model']} ({' '.join(cpu['flags'])})"


def sources() -> str:
    """A hash of what is tested."""
    files = [path for name in ("gated_deltanet", "csrc", "tests") for path in sorted((ROOT / name).rglob("*.*"))]
    digest = sha256()
    for path in files:
        if path.suffix in (".py", ".cpp", ".h"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure(report: dict[str, Any], before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fill a processor's report, and give it back whenever a line was added.

    before: its last one; what passed there is not run again if nothing has changed since.
    """
    same = all(before.get(name) == report[name] for name in ("torch", "sources"))
    passed = [run for run in before.get("runs", []) if same and not run["failures"]]
    report["effects"] = effects()
    values = {
        "kernels": native.usable_instruction_sets(),
        **{name: effective(x) for name, x in report["effects"].items()},
    }
    covering = list(pairwise_cover({**values, "threads": list(THREADS)}))
    report["planned"], report["replayed"], report["runs"] = len(covering), replay_everywhere(), []
    start = time.perf_counter()
    for i, combination in enumerate(covering, 1):
        known = [run for run in passed if combination.items() <= run.items()]
        report["runs"].append(known[0] if known else run_tests(combination))
        left = (time.perf_counter() - start) / i * (len(covering) - i) / 60
        print(f"{i} of {len(covering)}: {line(report['runs'][-1])} about {left:.0f} minutes left", flush=True)
        yield report


def line(run: dict[str, Any]) -> str:
    caps = [run[library].partition("=")[2] or "–" for library in CAPS]
    counts = [str(run.get(word, 0)) for word in ("passed", "failed", "skipped")]
    return "| " + " | ".join([run["kernels"], *caps, run["threads"], *counts]) + " |"


def replayed(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"- {row['processor']}: skipped, {row['skipped']}"
    threads = ", ".join(map(str, row["threads"]))
    counts = f"{row['passed']} passed, {row['failed']} failed, {len(row['kernels'])} kernels, {threads} threads"
    return f"- {row['processor']}, {row['instruction_set']}: {counts}"


def done(report: dict[str, Any]) -> str:
    runs, planned = len(report["runs"]), report["planned"]
    return f"{runs} combinations" if runs == planned else f"{runs} of {planned} combinations, then it was stopped"


def page(reports: dict[str, dict[str, Any]]) -> str:
    """results/processors.md."""
    parts = [
        "# Processors",
        "",
        f"`make test-processors`: {', '.join(TESTS)}; "
        "when all combinations were run, every two values of two columns have met.",
    ]
    for name, report in reports.items():
        parts += ["", f"## {name}", f"{report['date']}, torch {report['torch']}, {done(report)}", ""]
        parts += [f"| our kernels | {' | '.join(CAPS)} | threads | passed | failed | skipped |", "|---" * 8 + "|"]
        parts += [line(run) for run in report["runs"]]
        parts += [f"\nFailed: `{test}` ({line(run)})" for run in report["runs"] for test in run["failures"]]
        parts += ["", "Recorded calls of every kernel, replayed without Python (`make test-arm`):"]
        parts += [replayed(row) for row in report["replayed"]]
        parts += ["", "What was seen to run:"]
        for library, found in report["effects"].items():
            none = [cap for cap in found if cap and cap not in effective(found)]
            acting = "; ".join(f"{cap or 'no cap'}: {found[cap]}" for cap in effective(found))
            parts.append(
                f"- {library}: {acting}" + (f"; no effect here, or another's: {', '.join(none)}" if none else "")
            )
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results", help="folder of processors.json and processors.md"
    )
    out: Path = parser.parse_args().out
    if reason := native.unusable():
        sys.exit(f"make test-processors: {reason}")
    file = out / "processors.json"
    reports = json.loads(file.read_text()) if file.exists() else {}
    facts = {"date": str(date.today()), "torch": machine.describe_torch()["version"], "sources": sources()}
    for report in measure(facts, reports.get(processor(), {})):
        reports[processor()] = report
        file.write_text(json.dumps(reports, indent=1, ensure_ascii=False) + "\n")
        (out / "processors.md").write_text(page(reports))
    report = reports[processor()]
    return int(any(run["failures"] for run in report["runs"]) or any(row.get("failed") for row in report["replayed"]))


if __name__ == "__main__":
    sys.exit(main())
