"""How fast the kernels in Triton could be at best: bytes and flops of every launch against a GPU's peaks.

Bytes: every tensor that a launch is given, once; what several programs read again is taken to be in the L2 cache.
A time is the larger of bytes over bandwidth and flops over the tensor cores' peak: no kernel is faster, and latency,
which the pass of the state is bound by, is not in it. Writes results/gpu/roofline.md: make check-gpu-code.
"""

import math
from typing import Any, NamedTuple

import torch
from gpu_code import RESULTS, recorded, rule

GPUS = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}  # bytes/s, dense bfloat16 flop/s
CALLS = {
    "1 × 8192 tokens, 16 key and 32 value heads of 128": (1, 8192, 16, 32, 128, 128),
    "the 1.3B model's layer, 8 × 4096 tokens, 9 heads of 200 × 400": (8, 4096, 9, 9, 200, 400),
}
FORWARD = 3  # launches; what follows is backward, which begins with two of them again
REWRITTEN = {"state_pass_backward": "dU", "score_gradients": "dU"}  # read and written


def flops(kernel: str, C: int, d_k: int, d_v: int) -> float:
    """Of a chunk of a head, in its products."""
    scores_k, scores_v, states = 2 * C * C * d_k, 2 * C * C * d_v, 2 * C * d_k * d_v
    return {
        "ut_transform": 2 * scores_k + scores_v + 8 * C**3 * math.log2(C / 16) / 2,
        "state_pass": 2 * states,
        "chunk_output": states + scores_k + scores_v,
        "correction_gradient": scores_k + scores_v,
        "state_pass_backward": 3 * states,
        "score_gradients": 3 * scores_v + 2 * scores_k,
        "key_gradients": 3 * states + 4 * scores_k,
    }[kernel]


def moved(kernel: Any, arguments: tuple, constants: dict[str, Any]) -> int:
    """Bytes."""
    tensors = dict(zip((name for name in kernel.arg_names if name not in constants), arguments, strict=True))
    twice = tensors.get(REWRITTEN.get(kernel.__name__, ""))
    return sum(x.numel() * x.element_size() for x in (*tensors.values(), twice) if isinstance(x, torch.Tensor))


class Row(NamedTuple):
    """A launch."""

    name: str
    programs: int
    moved: int
    flops: float

    def seconds(self, gpu: str) -> float:
        bandwidth, peak = GPUS[gpu]
        return max(self.moved / bandwidth, self.flops / peak)


def rows(sizes: tuple[int, int, int, int, int, int]) -> list[Row]:
    """Of each launch on Hopper."""
    B, L, _, H_v, d_k, d_v = sizes
    found = []
    for kernel, grid, arguments, constants, _ in recorded("sm_90", rule, (torch.bfloat16, *sizes)):
        work = B * H_v * math.ceil(L / constants["C"]) * flops(kernel.__name__, constants["C"], d_k, d_v)
        found.append(Row(kernel.__name__, math.prod(grid), moved(kernel, arguments, constants), work))
    return found


def line(name: str, programs: object, launches: list[Row]) -> str:
    of_all = sum(row.moved for row in launches) / 1e6, sum(row.flops for row in launches) / 1e9
    at_best = [f"{1e6 * sum(row.seconds(gpu) for row in launches):.0f}" for gpu in GPUS]
    return f"| {name} | {programs} | {of_all[0]:.0f} | {of_all[1]:.1f} | {' | '.join(at_best)} |"


def report() -> str:
    lines = [__doc__ or ""]
    for title, sizes in CALLS.items():
        launches = rows(sizes)
        lines += [
            f"## {title}, bfloat16",
            "",
            f"| launch | programs | MB | GFLOP | {' | '.join(f'{g}, µs' for g in GPUS)} |",
        ]
        lines += ["|" + "---|" * (4 + len(GPUS)), *(line(row.name, row.programs, [row]) for row in launches)]
        lines += [line("**forward**", "", launches[:FORWARD]), line("**backward**", "", launches[FORWARD:]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "roofline.md").write_text("# The kernels' roofline\n" + report())
