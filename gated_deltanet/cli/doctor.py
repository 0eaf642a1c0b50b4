from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Doctor:
    """Print what this machine can do.

    Processor, torch, compiler and optional packages; for each op which backends are usable, or why not; what
    backend="auto" takes on each GPU and why; and whether transformers is accelerated in this process.

    Example: gdn doctor --json
    """

    json: bool = False
    """Print one JSON document instead of tables."""

    def run(self) -> None:
        from gated_deltanet.bench import machine
        from gated_deltanet.cli.output import print_json, print_table
        from gated_deltanet.interop.transformers import in_force

        facts, acceleration = machine.describe(), in_force()
        facts["accelerated"] = acceleration and acceleration.modules
        if self.json:
            return print_json(facts)
        print_table("This machine", ["what", "found"], machine_rows(facts, machine.EXTRA_OF))
        print_table("Backends", ["op", "backend", "usable"], backend_rows(facts["backends"]))
        print_table("GPUs", ["GPU", "auto takes", "because"], gpu_rows(facts))
        print_table("Transformers", ["what", "found"], [("accelerated", accelerated(facts["accelerated"]))])


def machine_rows(facts: dict[str, Any], extra_of: dict[str, str]) -> list[tuple[str, str]]:
    cpu, torch, native, compiler, memory = (facts[n] for n in ("cpu", "torch", "native", "compiler", "memory_bytes"))
    rows = [
        ("gated-deltanet", facts["version"]),
        ("python", facts["python"]),
        ("platform", facts["platform"]),
        ("torch", torch["version"]),
        ("CUDA", ", ".join(torch["cuda"]) or "no"),
        ("MPS", "yes" if torch["mps"] else "no"),
        ("processor", cpu["model"]),
        ("instruction sets", ", ".join(cpu["flags"]) or "unknown"),
        ("torch's kernels use", cpu["capability"]),
        ("native kernels use", native["instruction_set"] or f"nothing: {native['unusable']}"),
        ("cores usable", f"{cpu['cores']}, torch uses {torch['threads']} threads"),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
        ("C++ compiler", compiler or "none found: torch.compile needs one on a CPU (g++, clang++, or name it in CXX)"),
    ]
    for package, version in facts["packages"].items():
        install = f"not installed: pip install 'gated-deltanet[{extra_of[package]}]'"
        rows.append((package, version or install))
    return rows


def accelerated(modules: list[str] | None) -> str:
    if modules is None:
        return "no: gated_deltanet.accelerate_transformers() in your program does it; gdn accelerate shows what it does"
    return ", ".join([*(name.split(".")[-2] for name in modules), "and what is imported later"])


def gpu_rows(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """auto: our kernels in Triton, or forms in torch alone, as chunkwise."""
    rows = [(f"{gpu['gpu']}, {gpu['architecture']}", gpu["auto"], gpu["why"]) for gpu in facts["gpus"]]
    rows += [(name, "triton", "with the tiles that gdn tune found") for name in facts["tuned_tiles"]]
    return rows or [("none", "", "torch finds no GPU: kernels for GPUs are left alone, and triton is not imported")]


def backend_rows(backends: dict[str, dict[str, str | None]]) -> list[tuple[str, str, str]]:
    return [
        (op, backend, "yes" if reason is None else f"no: {reason}")
        for op, reasons in backends.items()
        for backend, reason in reasons.items()
    ]
