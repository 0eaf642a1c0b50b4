"""Compile every kernel in Triton for GPUs that are not here, and look at the code: make check-gpu-code.

What is compiled is what the library would launch: its host code runs on tensors without data (`meta`) with a launch
that only takes notes. Fails on spilled registers for heads up to 128, on more shared memory than a processor of the
target has, on products without tensor-core instructions, and on a transposed result of `tl.dot`, which gives wrong
gradients on some GPUs. Writes results/gpu/code.json and code.md, and what passed to gated_deltanet/ops/compiled.json,
which "auto" reads.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import ASTSource

from gated_deltanet.ops import gpu
from gated_deltanet.ops import launches as launching
from gated_deltanet.ops.gated_delta_rule import triton_rule, triton_steps, tuned_tiles
from gated_deltanet.ops.gated_rms_norm import triton_norm
from gated_deltanet.ops.linear_attention import triton_attention
from gated_deltanet.ops.short_conv import triton_conv
from gated_deltanet.ops.swiglu import triton_swiglu

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS = ((64, 64), (128, 128), (200, 400), (256, 256))  # d_k, d_v; 200/400 are the paper's 1.3B model's
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}
TENSOR_CORE = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_mfma)")


SPILLS = {  # that are allowed, for heads above 128, and why
    ("state_pass", "fp32"): "256 rows of the state in three parts of tf32 each",
    ("state_pass_backward", "fp32"): "256 rows of the state in three parts of tf32 each",
    ("score_gradients", "fp16"): "a few registers on gfx942, where four tiles C × C and their operands meet",
}


class Target(NamedTuple):
    target: GPUTarget
    shared: int  # bytes that a block of threads may have


TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), 166_912),
    "sm_90": Target(GPUTarget("cuda", 90, 32), 232_448),
    "sm_100": Target(GPUTarget("cuda", 100, 32), 232_448),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), 65_536),
}


class Launch(NamedTuple):
    """What tells one compilation from another. signature: the types of arguments that are no constants."""

    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int]


def launches(architecture: str, dtype: torch.dtype, d_k: int, d_v: int) -> list[Launch]:
    """Of all that the library launches for heads of this size, each once."""
    found: dict[str, Launch] = {}
    for call in (rule, attention, steps, fused):
        for kernel, _, arguments, constants, options in recorded(
            architecture, call, (dtype, 1, 8192, 16, 32, d_k, d_v)
        ):
            launch = launch_of(kernel, arguments, constants, options)
            found.setdefault(f"{launch}", launch)
    return list(found.values())


def launch_of(kernel: Any, arguments: tuple, constants: dict[str, Any], options: dict[str, int]) -> Launch:
    names = [name for name in kernel.arg_names if name not in constants]
    given = dict(zip(names, arguments, strict=True))
    ones = {name: x for name, x in given.items() if isinstance(x, int) and x == 1}  # triton makes constants of it
    signature = {name: type_of(x) for name, x in given.items() if name not in ones}
    return Launch(kernel.fn.__module__, kernel.__name__, signature, constants | ones, options)


def type_of(x: torch.Tensor | float) -> str:
    """As Triton names it."""
    if isinstance(x, torch.Tensor):
        return f"*{NAMES[x.dtype]}"
    return "fp32" if isinstance(x, float) else "i32"


def recorded(architecture: str, call: Callable[..., object], sizes: tuple) -> list[tuple]:
    """The arguments of every `launches.run` of call(*sizes) on such a GPU."""
    calls: list[tuple] = []
    before = launching.run, gpu.architecture
    launching.run, gpu.architecture = lambda *call: calls.append(call), lambda device: architecture
    tuned_tiles.tuned().clear()  # what this machine has tuned is nobody else's
    try:
        call(*sizes)
    finally:
        launching.run, gpu.architecture = before
    return calls


def rule(*sizes: Any) -> None:
    """Forward, then backward."""
    inputs = meta_inputs(*sizes)
    triton_rule.backward(triton_rule.forward(*inputs), *inputs)


def attention(*sizes: Any) -> None:
    """Linear attention, forward, then backward."""
    q, k, v, log_alpha, _, state, _ = meta_inputs(*sizes)
    inputs = (q, k, v, log_alpha[..., None], state, None)
    triton_attention.backward(triton_attention.forward(*inputs), *inputs)


def steps(dtype: torch.dtype, B: int, L: int, *heads: int) -> None:
    """A short sequence, forward and backward; a token of the rule and one of the mix."""
    inputs = meta_inputs(dtype, B, 16, *heads)
    triton_steps.backward(triton_steps.forward(*inputs), *inputs)
    q, k, v, log_alpha, beta, state, _ = meta_inputs(dtype, B, 1, *heads)
    triton_steps.step(q, k, v, log_alpha, beta, state, state)
    a, A_log = log_alpha.to(dtype), log_alpha[0, 0]
    triton_steps.mix_step(q, k, v, a, a, A_log, A_log, 1.0, state, state)
    triton_steps.linear_step(q, k, v, log_alpha, state)


def fused(dtype: torch.dtype, *sizes: int) -> None:
    """What else a layer does, whatever its heads: short convolution, gated norm, plain norm, SwiGLU."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, weight, bias, state = empty(1, 8192, 4096), empty(4096, 4), None, empty(1, 3, 4096)
    triton_conv.backward(
        triton_conv.forward(x, weight, bias, state, "silu", None), x, weight, bias, state, "silu", None
    )
    triton_conv.step(x[:, 0], weight, bias, state, "silu")
    of_heads = empty(1, 8192, 32, 128)
    for inputs in ((of_heads, of_heads, empty(128)), (empty(1, 8192, 8192), None, empty(8192))):
        triton_norm.backward([triton_norm.forward(*inputs, 1e-5)], *inputs, 1e-5)
    triton_swiglu.backward([triton_swiglu.forward(x, x)], x, x)


def meta_inputs(dtype: torch.dtype, B: int, L: int, H: int, H_v: int, d_k: int, d_v: int) -> tuple[Any, ...]:
    """Of the gated delta rule, without data."""
    shapes = ((B, L, H, d_k), (B, L, H, d_k), (B, L, H_v, d_v))
    tokens = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    gates = [torch.empty(B, L, H_v, device="meta") for _ in range(2)]
    return *tokens, *gates, torch.empty(B, H_v, d_k, d_v, device="meta"), None


def compile_for(architecture: str, launch: Launch) -> Any:
    """As a launch with aligned tensors would be."""
    kernel = getattr(import_module(launch.module), launch.kernel)
    pointers = [name for name, kind in launch.signature.items() if kind[0] == "*"]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in pointers}
    signature = launch.signature | dict.fromkeys(launch.constants, "constexpr")
    source = ASTSource(kernel, {n: signature[n] for n in kernel.arg_names}, launch.constants, attributes)
    return triton.compile(source, target=TARGETS[architecture].target, options=launch.options)


def registers(compiled: Any) -> tuple[int, int]:
    """Of a thread, and the bytes it spills to memory."""
    if "amdgcn" in compiled.asm:
        found = (
            re.search(rf"\.{name}:\s+(\d+)", compiled.asm["amdgcn"]) for name in ("vgpr_count", "vgpr_spill_count")
        )
        count, spilled = (int(match[1]) for match in found if match)
        return count, 4 * spilled
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert match, usage
    return int(match[1]), spilled_by_ptxas(compiled) if int(match[2]) else 0


def spilled_by_ptxas(compiled: Any) -> int:
    """The bytes that ptxas spills: a stack may have other reasons."""
    version = re.search(r"\.target (\w+)", compiled.asm["ptx"])
    assert version
    architecture = int(re.sub(r"\D", "", version[1]))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(compiled.asm["ptx"])
        command = [
            nvidia.get_ptxas(architecture).path,
            "-v",
            f"--gpu-name={version[1]}",
            source,
            "-o",
            source.with_suffix(".cubin"),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))


def transposed_products(ttir: str) -> list[str]:
    """The `tt.trans` whose operand was made by a `tt.dot`, followed back to what was loaded."""
    sources: dict[str, set[str]] = {}
    dots, transposed, loops = set(), [], []
    for line in ttir.splitlines():
        result, _, operation = line.partition(" = ")
        names = {re.sub(r"[:#].*", "", name) for name in re.findall(r"%[\w:#]+", operation or line)}
        made = re.sub(r":.*", "", result.strip())
        if "scf.for" in line:
            carried = re.findall(r"(%\w+) = (%[\w#]+)", operation)
            loops.append([made, *(name for name, _ in carried)])
            for name, initial in carried:
                sources.setdefault(name, set()).add(initial.split("#")[0])
        elif "scf.yield" in line and loops:
            for name in loops.pop():
                sources.setdefault(name, set()).update(names)
        elif made.startswith("%") and "tt.load" not in operation:
            sources[made] = names
            dots |= {made} if "tt.dot" in operation else set()
            transposed += [made] if "tt.trans" in operation else []
    return [name for name in transposed if ancestors(name, sources) & dots]


def ancestors(name: str, sources: dict[str, set[str]]) -> set[str]:
    found, left = set(), [name]
    while left:
        new = sources.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def variant(launch: Launch) -> str:
    """What tells launches of one kernel apart."""
    switches = [name for name, value in launch.constants.items() if value is True and name not in ("SILU", "PACKED")]
    return " ".join(switches + (["one token"] if launch.constants.get("L") == 1 else []))


def examine(job: tuple[str, str, int, int, Launch]) -> dict[str, Any]:
    """A row of the table, with what is wrong."""
    architecture, dtype, d_k, d_v, launch = job
    compiled = compile_for(architecture, launch)
    count, spilled = registers(compiled)
    code = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    shared, products = compiled.metadata.shared, len(TENSOR_CORE.findall(code))
    wrong = []
    if spilled and (max(d_k, d_v) <= 128 or (launch.kernel, dtype) not in SPILLS):
        wrong.append(f"spills {spilled} bytes")
    if shared > TARGETS[architecture].shared:
        wrong.append(f"needs {shared} bytes of shared memory, {architecture} has {TARGETS[architecture].shared}")
    if "tt.dot" in compiled.asm["ttir"] and not products:
        wrong.append("has no tensor-core instruction")
    if names := transposed_products(compiled.asm["ttir"]):
        wrong.append(f"transposes a result of tl.dot: {', '.join(names)}")
    return {
        "kernel": launch.kernel, "variant": variant(launch), "target": architecture, "dtype": dtype,
        "d_k": d_k, "d_v": d_v, "C": launch.constants.get("C"), "columns": launch.constants.get("COLUMNS"),
        "warps": launch.options["num_warps"], "stages": launch.options["num_stages"], "registers": count,
        "spilled_bytes": spilled, "shared_bytes": shared,
        "tensor_core_instructions": products, "wrong": wrong,
    }  # fmt: skip


def jobs(targets: list[str], dtypes: list[str], heads: list[list[int]]) -> Iterator[tuple]:
    """Each compilation once: some do not depend on the heads."""
    by_name, seen = {NAMES[dtype]: dtype for dtype in DTYPES}, set()
    for architecture, dtype, (d_k, d_v) in product(targets, dtypes, heads):
        for launch in launches(architecture, by_name[dtype], d_k, d_v):
            if (architecture, f"{launch}") not in seen:
                seen.add((architecture, f"{launch}"))
                yield architecture, dtype, d_k, d_v, launch


def passed(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The dtypes of each target in which nothing is wrong: all that "auto" takes there."""
    wrong = {(row["target"], row["dtype"]) for row in rows if row["wrong"]}
    found: dict[str, list[str]] = {}
    for target, dtype in dict.fromkeys((row["target"], row["dtype"]) for row in rows):
        found.setdefault(target, []).extend([] if (target, dtype) in wrong else [dtype])
    return found


def document(rows: list[dict[str, Any]]) -> str:
    """JSON, a line for each row."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"triton": "{triton.__version__}", "rows": [\n{lines}\n]}}\n'


def table(rows: list[dict[str, Any]]) -> str:
    """In Markdown. A kernel with several rows is launched with several constants."""
    columns = [name for name in rows[0] if name != "wrong"]
    lines = ["| " + " | ".join(columns).replace("_", " ") + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(f"{row[c]}" for c in columns) + " |" for row in rows)]) + "\n"


def exceptions() -> str:
    lines = [f"- `{kernel}`, {dtype}: {reason}" for (kernel, dtype), reason in SPILLS.items()]
    return "\n".join(["Spills that are allowed, with heads above 128 only:", *lines, "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--dtypes", nargs="+", default=[NAMES[dtype] for dtype in DTYPES])
    parser.add_argument("--heads", nargs="+", default=[f"{d_k}x{d_v}" for d_k, d_v in HEADS], help="d_k x d_v")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--keep", action="store_true", help="write results/gpu and compiled.json: with all targets, dtypes and heads"
    )
    options = parser.parse_args()
    heads = [[int(d) for d in name.split("x")] for name in options.heads]
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for row in pool.map(examine, jobs(options.targets, options.dtypes, heads)):
            rows.append(row)
            said = "; ".join(row["wrong"]) or "ok"
            shown = " ".join(f"{row[name]}" for name in list(row)[:-1])
            print(f"{shown}: {said}", flush=True)
    if options.keep:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "code.json").write_text(document(rows))
        of_auto = {"triton": triton.__version__, "passed": passed(rows)}
        gpu.COMPILED.write_text(json.dumps(of_auto, indent=1) + "\n")
        (RESULTS / "code.md").write_text(HEADER.format(triton=triton.__version__) + exceptions() + table(rows))
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


HEADER = """# The code of the GPU kernels
Compiled ahead of time with Triton {triton} by `make check-gpu-code`, on a machine without a GPU: one row for each
kernel, target, dtype and head size. None of it has run on a GPU. docs/gpu.md says what follows from it.

"""

if __name__ == "__main__":
    main()
