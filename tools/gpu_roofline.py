"""How fast the kernels in Triton could be at best: bytes, flops and occupancy of every launch against a GPU's peaks.

Bytes: every tensor that a launch reads or writes, once; what several programs read again is taken to be in the L2
cache. A time is the larger of bytes over bandwidth and flops over the peak of tensor cores (of other arithmetic, for
kernels without products): no kernel is faster. Latency, which the pass of the state is bound by, is not in it.
Occupancy: of the 64 warps that a processor of an H100 or H200 can hold, those that registers and shared memory leave
room for, and waves, how often its 132 processors are filled. Writes results/gpu/roofline.md: make check-gpu-code.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from gpu_code import RESULTS, attention, examine, fused, launch_of, meta_inputs, recorded, rule

from gated_deltanet.ops.gated_delta_rule import triton_steps

PROCESSORS, WARPS, BLOCKS, REGISTERS, SHARED = 132, 64, 32, 65_536, 233_472  # of Hopper; the last four of a processor
RESERVED = 1024  # bytes of shared memory that each block takes besides
GPUS = {"H100": 3.35e12, "H200": 4.8e12}  # bytes/s
TENSOR_CORES, OTHERS = 989e12, 67e12  # flop/s: dense bfloat16, float32
REWRITTEN = {"state_pass_backward": "dU", "score_gradients": "dU"}  # read and written
UNTOUCHED = {  # with this switch off
    "DELTA": ("W", "corrected", "inverse", "v", "beta", "dU", "dv", "dKK", "dbeta", "Y"),
    "GATED": ("gate", "dgate"),
}
TOUCHED = {"state_pass_backward": "dU", "recurrence": "v"}  # nevertheless
EDGES = ("last_inputs", "past_gradient")  # of tokens they read the first or last few


def decode(dtype: torch.dtype, B: int, L: int, *heads: int) -> None:
    """A token of each of B sequences, from what a layer projects."""
    q, k, v, log_alpha, _, state, _ = meta_inputs(dtype, B, 1, *heads)
    a, A_log = log_alpha.to(dtype), log_alpha[0, 0]
    triton_steps.mix_step(q, k, v, a, a.clone(), A_log, A_log.clone(), 1.0, state, state)


class Section(NamedTuple):
    """Launches of a call. sizes: B, L, H, H_v, d_k, d_v. forward: how many of them are; the others are backward."""

    title: str
    call: Callable[..., None]
    sizes: tuple[int, int, int, int, int, int]
    forward: int | None


HEADS = (16, 32, 128, 128)
SECTIONS = (
    Section("1 × 8192 tokens, 16 key and 32 value heads of 128", rule, (1, 8192, *HEADS), 3),
    Section("The 1.3B model's layer, 8 × 4096 tokens, 9 heads of 200 × 400", rule, (8, 4096, 9, 9, 200, 400), 3),
    Section("Linear attention, 1 × 8192 tokens, 16 key and 32 value heads of 128", attention, (1, 8192, *HEADS), 2),
    Section("A decoded token of 1 sequence, 16 key and 32 value heads of 128", decode, (1, 1, *HEADS), None),
    Section("A decoded token of each of 64 sequences", decode, (64, 1, *HEADS), None),
    Section("The layer around it: 8192 tokens of 4096 channels; of the norms, heads of 128 and 8192", fused,
            (1, 8192, *HEADS), None),
)  # fmt: skip


def flops(kernel: str, C: int, d_k: int, d_v: int, delta: bool) -> float:
    """Of a chunk of a head, in its products; those of operands in two parts count as they are made."""
    scores_k, scores_v, states = 2 * C * C * d_k, 2 * C * C * d_v, 2 * C * d_k * d_v
    return {
        "ut_transform": 3 * scores_k + 2 * scores_v + 8 * C**3 * math.log2(C / 16) / 2,
        "state_pass": (3 if delta else 2) * states,
        "chunk_output": states + scores_k + (3 if delta else 2) * scores_v,
        "correction_gradient": scores_k + scores_v,
        "state_pass_backward": (3 if delta else 2) * states,
        "score_gradients": 4 * scores_v + 2 * scores_k if delta else scores_v + scores_k,
        "key_gradients": 3 * states + 4 * scores_k if delta else 2 * states + 2 * scores_k,
    }[kernel]


def moved(kernel: Any, arguments: tuple, constants: dict[str, Any]) -> int:
    """Bytes."""
    name, given = kernel.__name__, zip((n for n in kernel.arg_names if n not in constants), arguments, strict=True)
    unused = [n for switch, names in UNTOUCHED.items() if constants.get(switch) is False for n in names]
    unused += ["x", "dy"] if name in EDGES else []
    tensors = {n: x for n, x in given if isinstance(x, torch.Tensor) and (n not in unused or n == TOUCHED.get(name))}
    once = {id(x): x for x in tensors.values()}  # the same tensor may stand in several places
    twice = [tensors[n] for n in (REWRITTEN.get(name), "last_state" if name == "recurrence" else None) if n in tensors]
    return sum(x.numel() * x.element_size() for x in (*once.values(), *twice))


class Row(NamedTuple):
    """A launch."""

    name: str
    programs: int
    moved: int
    flops: float
    peak: float
    warps: int  # of a processor
    waves: float

    def seconds(self, gpu: str) -> float:
        return max(self.moved / GPUS[gpu], self.flops / self.peak)


def blocks(registers: int, shared: int, warps: int) -> int:
    """Programs that a processor holds at once. Registers are given out to warps in units of 256."""
    of_warp = math.ceil(registers * 32 / 256) * 256
    return max(1, min(BLOCKS, WARPS // warps, REGISTERS // (of_warp * warps), SHARED // (shared + RESERVED)))


def rows(section: Section) -> list[Row]:
    """Of each launch on Hopper, in bfloat16."""
    B, L, _, H_v, d_k, d_v = section.sizes
    found = []
    for kernel, grid, arguments, constants, options in recorded(
        "sm_90", section.call, (torch.bfloat16, *section.sizes)
    ):
        launch = launch_of(kernel, arguments, constants, options)
        code = examine(("sm_90", "bf16", d_k, d_v, launch))
        held = blocks(code["registers"], code["shared_bytes"], options["num_warps"])
        work, peak = 0.0, TENSOR_CORES
        if C := constants.get("C"):
            work = (
                B
                * H_v
                * math.ceil(L / C)
                * flops(kernel.__name__, C, d_k, d_v, constants.get("DELTA", U_is_wide(launch)))
            )
        elif kernel.__name__ == "recurrence":
            work, peak = B * L * H_v * 7 * d_k * d_v, OTHERS
        programs = math.prod(grid)
        occupied = held * options["num_warps"]
        sizes = moved(kernel, arguments, constants)
        found.append(Row(kernel.__name__, programs, sizes, work, peak, occupied, programs / (held * PROCESSORS)))
    return found


def U_is_wide(launch: Any) -> bool:
    """Of kernels that do not know of the correction: it comes in float32, values do not."""
    return launch.signature.get("U") == "*fp32"


def line(name: str, launches: list[Row], one: Row | None = None) -> str:
    of_all = sum(row.moved for row in launches) / 1e6, sum(row.flops for row in launches) / 1e9
    at_best = [short(1e6 * sum(row.seconds(gpu) for row in launches)) for gpu in GPUS]
    place = [f"{one.programs}", f"{one.warps} of {WARPS}", f"{one.waves:.1f}"] if one else ["", "", ""]
    return f"| {' | '.join([name, *place, *map(short, of_all), *at_best])} |"


def short(x: float) -> str:
    """Three digits."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def report() -> str:
    lines = [__doc__ or ""]
    columns = ["launch", "programs", "warps", "waves", "MB", "GFLOP", *(f"{gpu}, µs" for gpu in GPUS)]
    for section in SECTIONS:
        launches = rows(section)
        lines += [f"## {section.title}, bfloat16", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [line(row.name, [row], row) for row in launches]
        if section.forward:
            lines += [
                line("**forward**", launches[: section.forward]),
                line("**backward**", launches[section.forward :]),
            ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "roofline.md").write_text("# The kernels' roofline\n" + report())
