"""What is wrong with an argument, in a message that names it, what it is and what was expected."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from . import gpu, native

INT64 = torch.iinfo(torch.int64)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_shapes(op: str, **arguments: tuple[Tensor | None, str]) -> dict[str, int]:
    """Bind each axis name to its size: `check_shapes("op", q=(q, "B L H d_k"), …)["H"]`. One size a name, one device.

    An argument that may be None has axes that begin with "?".
    """
    sizes: dict[str, int] = {}
    first, device = "", None
    for name, (x, axes) in arguments.items():
        if x is None and axes[0] == "?":
            continue
        names = axes.lstrip("? ").split()
        if not isinstance(x, Tensor):
            raise ValueError(f"{op}: {name} is a {type(x).__name__}, expected a tensor [{', '.join(names)}]")
        shape = x.shape
        if len(shape) != len(names):
            raise ValueError(f"{op}: {name} is {list(shape)}, expected {len(names)} axes [{', '.join(names)}]")
        if device is None:
            first, device = name, x.device
        elif x.device != device:
            raise ValueError(f"{op}: {name} is on {x.device}, expected {device}, where {first} is")
        for axis, size in zip(names, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                origin = next(other for other, (_, known) in arguments.items() if axis in known.split())
                raise ValueError(
                    f"{op}: {name} is {list(shape)}, expected [{', '.join(names)}]"
                    f" with {axis} = {sizes[axis]}, as {origin} has"
                )
    return sizes


def check_floats(op: str, **arguments: Tensor) -> torch.dtype:
    """All of one floating-point dtype. Returns the dtype of gates, states and sums: see `accumulator`."""
    first, like = next(iter(arguments.items()))
    for name, x in arguments.items():
        if x.dtype not in FLOATS:
            raise ValueError(f"{op}: {name} is {x.dtype}, expected float32, bfloat16, float16 or float64")
        if x.dtype != like.dtype:
            raise ValueError(f"{op}: {name} is {x.dtype}, expected {like.dtype}, as {first} is")
    return accumulator(like)


def accumulator(x: Tensor) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_gates(op: str, **arguments: Tensor | None) -> None:
    """Floating point of any width, and no NaN where that is cheap to see."""
    for name, x in arguments.items():
        if x is None:
            continue
        if x.dtype not in FLOATS:
            raise ValueError(f"{op}: {name} is {x.dtype}, expected float32, bfloat16, float16 or float64")
        if values_are_cheap(x) and holds_nan(x):
            raise ValueError(f"{op}: {name} holds NaN, expected numbers")


def holds_nan(x: Tensor) -> bool:
    """By what takes 0.5 µs for few numbers, or by what takes a tenth of the time for many."""
    return bool(x.amin().isnan()) if x.numel() > 8192 else not torch.equal(x, x)  # NaN differs from itself


def check_groups(op: str, H: int, H_v: int) -> None:
    if H == 0 or H_v % H:
        raise ValueError(f"{op}: v has {H_v} heads, expected a multiple of the {H} heads of q and k")


def check_state(
    op: str,
    state: Tensor | None,
    axes: str,
    sizes: Mapping[str, int],
    like: Tensor,
    *,
    name: str = "state",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The state, zero if None, after checks of shape, device and dtype (None: `accumulator`). like: an input."""
    shape = [sizes[axis] for axis in axes.split()]
    dtype = dtype or accumulator(like)
    if state is None:
        return like.new_zeros(shape, dtype=dtype)
    if not isinstance(state, Tensor):
        raise ValueError(f"{op}: {name} is a {type(state).__name__}, expected a tensor {shape}")
    if list(state.shape) != shape:
        raise ValueError(f"{op}: {name} is {list(state.shape)}, expected [{axes.replace(' ', ', ')}] = {shape}")
    if state.device != like.device:
        raise ValueError(f"{op}: {name} is on {state.device}, expected {like.device}, where the inputs are")
    if state.dtype != dtype:
        raise ValueError(f"{op}: {name} is {state.dtype}, expected {dtype}; convert it with {name}.to(…)")
    return state


def check_step_state(
    op: str, state: Tensor, axes: str, sizes: Mapping[str, int], like: Tensor, **expected: Any
) -> None:
    """The state of a step, which is updated in place and so must be there. expected: as in `check_state`."""
    if state is None:
        shape = [sizes[axis] for axis in axes.split()]
        raise ValueError(f"{op}: {expected.get('name', 'state')} is None, expected a tensor {shape} to update in place")
    check_state(op, state, axes, sizes, like, **expected)


def check_cu_seqlens(op: str, cu_seqlens: Tensor | None, like: Tensor) -> int:
    """The number of sequences, N. like: an input of the op, [B, L, …]. `packing` checks the values as it reads them."""
    B = like.shape[0]
    if cu_seqlens is None:
        return B
    if not isinstance(cu_seqlens, Tensor):
        raise ValueError(f"{op}: cu_seqlens is a {type(cu_seqlens).__name__}, expected an int64 tensor [N + 1]")
    if cu_seqlens.device not in (like.device, torch.device("cpu")):
        raise ValueError(f"{op}: cu_seqlens is on {cu_seqlens.device}, expected {like.device}, where the inputs are")
    if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or len(cu_seqlens) < 2:
        raise ValueError(
            f"{op}: cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, expected int32 or int64 [N + 1], N ≥ 1"
        )
    if B != 1:
        raise ValueError(f"{op}: cu_seqlens packs sequences in one row, but the batch has {B} rows")
    return len(cu_seqlens) - 1


def check_log_alpha(op: str, log_alpha: Tensor) -> None:
    check_gates(op, log_alpha=log_alpha)
    if values_are_cheap(log_alpha) and log_alpha.numel() and (most := log_alpha.max().item()) > 0:
        raise ValueError(f"{op}: log_alpha holds {most:.4g}, expected values ≤ 0 (α = exp(log_alpha) is a decay)")


def check_number(
    op: str, name: str, value: float, *, least: float = 0.0, above: float | None = None, most: float
) -> None:
    """An int or a float within the bounds. above: a bound that is not itself allowed, instead of least."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not value <= most or not (value >= least if above is None else value > above):
        lower = f"at least {least:g}" if above is None else f"more than {above:g}"
        raise ValueError(f"{op}: {name} is {shown(value)}, expected a number, {lower} and at most {most:g}")


def check_whole(op: str, name: str, value: int | None, *, least: int = INT64.min, instead: str = "") -> None:
    """An int that 64 bits can hold. instead: what else the argument may be, for the message."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= INT64.max:
        lower = "" if least == INT64.min else f", at least {least},"
        raise ValueError(f"{op}: {name} is {shown(value)}, expected a whole number{lower} of 64 bits{instead}")


def check_switch(op: str, name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{op}: {name} is {shown(value)}, expected True or False")


def check_no_grad(op: str, *tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise ValueError(f"{op} updates its state in place and has no gradient: call it under torch.no_grad()")


def values_are_cheap(x: Tensor) -> bool:
    """Values are looked at in eager mode on a CPU only: elsewhere that would wait for the device or break the graph."""
    return x.is_cpu and not torch.compiler.is_compiling() and not isinstance(x, FakeTensor)


def choose_backend(
    op: str,
    backends: Mapping[str, Callable],
    name: str,
    auto: str,
    like: Tensor | None = None,
    beyond: str | None = None,
) -> Callable:
    """The named backend, which runs or raises; for "auto" cpp or triton if there is one that takes operands like
    `like`, or auto. beyond: why kernels in Triton do not take sizes as these.
    """
    if name == "auto":
        name = _fastest(backends, like, beyond) or auto
    if not isinstance(name, str) or name not in backends:
        raise ValueError(f"{op}: backend is {shown(name)}, expected one of auto, {', '.join(backends)}")
    reason = None if like is None else refusal(name, like)
    if reason := reason or (beyond if name.startswith("triton") else None):
        raise ValueError(f"{op}: backend {name!r} {reason}")
    return backends[name]


def _fastest(backends: Mapping[str, Callable], like: Tensor | None, beyond: str | None) -> str | None:
    if like is not None and "cpp" in backends and native.refusal(like) is None:
        return "cpp"
    return "triton" if like is not None and "triton" in backends and not beyond and gpu.preferred(like) else None


def refusal(backend: str, like: Tensor) -> str | None:
    """None if the backend takes operands like `like`, else the reason why not."""
    if backend.startswith("cpp"):
        return native.refusal(like)
    return gpu.refusal(like, unusable(backend)) if backend.startswith(("triton", "fla")) else None


def unusable(backend: str) -> str | None:
    """None if the backend of this name can be used on this machine, else the reason why not. cpp, cpp-…: the native
    library; triton, triton-…: our kernels in Triton; fla: flash-linear-attention's.
    """
    if backend.startswith("cpp"):
        return native.unusable()
    if backend == "fla":
        return gpu.fla_unusable()
    return gpu.unusable() if backend.startswith("triton") else None


def shown(value: object) -> str:
    """A value, or if it is no simple one, what it is: tensors and lists may be long."""
    return repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
