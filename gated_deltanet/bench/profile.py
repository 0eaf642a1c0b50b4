"""Where the time of a training step goes: matrix products, native kernels, or anything else."""

from typing import Any

from torch.profiler import ProfilerActivity, profile

from .train import Cell, Trial

PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")
ATTENTION = "aten::_scaled_dot_product"  # torch's fused kernel, native too, but not ours
FORWARD = "GeneratedBackwardFor_gdn_"  # what torch calls the forward of an operator that can be differentiated


def shares(cell: Cell, dtype: str) -> dict[str, Any]:
    """Shares of the seconds of one step, after one to warm up. ops: by name, the longest first."""
    trial = Trial(cell, dtype)
    trial.step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        trial.step()
    seconds = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    total = sum(seconds.values())
    ops = [
        {"op": op, "kind": kind(op), "share": s / total, "seconds": s}
        for op, s in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    kinds = {name: sum(op["share"] for op in ops if op["kind"] == name) for name in ("product", "native", "other")}
    return {**cell._asdict(), "dtype": dtype, "seconds": total, "shares": kinds, "ops": ops}


def kind(op: str) -> str:
    """product; native: our C++ kernels, forward and backward, and torch's fused attention; or other."""
    if op in PRODUCTS:
        return "product"
    ours = op.startswith(("gdn::", FORWARD)) and "_cpp" in op and not op.endswith("Backward")
    return "native" if ours or op.startswith(ATTENTION) else "other"
