"""What FLA's functions share: shapes, dtypes, scale and packing, checked by FLA's names, and the layout of a state.

FLA writes B T H HV K V for our B L H H_v d_k d_v, `g` for log_alpha, and N for the number of sequences.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gated_deltanet.ops import checks

RENAMED = "transpose_state_layout"

Gates = Mapping[str, tuple[Tensor | None, str]]  # by name: the tensor and its axes, "?" for one that may be None


@dataclass(frozen=True)
class Call:
    """What was checked: q, k and v in the widest of their dtypes, scale a number, state [N, HV, K, V]."""

    op: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    state: Tensor | None
    cu_seqlens: Tensor | None

    @property
    def sums(self) -> torch.dtype:
        """The dtype of gates, states and sums."""
        return checks.accumulator(self.q)


def read(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    scale: float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    grouped: bool = False,
    state_v_first: bool = False,
    cu_seqlens_cpu: Tensor | None = None,
) -> Call:
    """Check what every function takes. gates: name -> tensor and axes. grouped: v may have more heads, HV."""
    HV = "HV" if grouped else "H"
    sizes = checks.check_shapes(op, q=(q, "B T H K"), k=(k, "B T H K"), v=(v, f"B T {HV} V"), **gates)
    checks.check_groups(op, sizes["H"], sizes[HV])
    checks.check_gates(op, **{name: gate for name, (gate, _) in gates.items()})
    dtype = widest(op, q=q, k=k, v=v)
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, q)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    state = read_state(op, initial_state, f"N {HV} V K" if state_v_first else f"N {HV} K V", sizes, like=q)
    state = state.mT if state is not None and state_v_first else state
    if cu_seqlens is not None and cu_seqlens_cpu is not None:
        checks.check_cu_seqlens(op, cu_seqlens_cpu, q)
        cu_seqlens = cu_seqlens_cpu  # the same numbers, without waiting for the device
    return Call(op, q, k, v, read_scale(op, scale, q), state, cu_seqlens)


def widest(op: str, **tensors: Tensor) -> torch.dtype:
    """The dtype that q, k and v are computed in: they may differ."""
    for name, x in tensors.items():
        checks.check_floats(op, **{name: x})
    q, k, v = (x.dtype for x in tensors.values())
    return torch.promote_types(torch.promote_types(q, k), v)


def read_state(op: str, state: Tensor | None, axes: str, sizes: Mapping[str, int], like: Tensor) -> Tensor | None:
    """initial_state in the dtype of sums; FLA takes any floating-point dtype."""
    if state is None:
        return None
    dtype = state.dtype if isinstance(state, Tensor) else None
    state = checks.check_state(op, state, axes, sizes, like, name="initial_state", dtype=dtype)
    if state.dtype not in checks.FLOATS:
        raise ValueError(f"{op}: initial_state is {state.dtype}, expected a floating-point type")
    return state.to(checks.accumulator(like))


def read_scale(op: str, scale: float | None, q: Tensor) -> float:
    """K^−½ for None."""
    if scale is None:
        return q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"{op}: scale is {checks.shown(scale)}, expected a finite number, or None for K ** -0.5")
    return float(scale)


def check_decay(op: str, name: str, gate: Tensor | None) -> None:
    """A decay in log space, where values are cheap to see."""
    if gate is None or not checks.values_are_cheap(gate) or not gate.numel():
        return
    if (most := gate.max().item()) > 0:
        raise ValueError(f"{op}: {name} holds {most:.4g}, expected values ≤ 0, the logarithms of decays")


def check_chunk_size(op: str, chunk_size: int | None, sizes: tuple[int, ...] = ()) -> None:
    """FLA's tiles, which have no meaning here: checked as FLA does, then passed over. No sizes: any power of two."""
    whole = isinstance(chunk_size, int) and chunk_size > 0
    if not (chunk_size in sizes if sizes else chunk_size is None or (whole and chunk_size.bit_count() == 1)):
        expected = ", ".join(map(str, sizes)) or "a power of two"
        raise ValueError(f"{op}: chunk_size is {checks.shown(chunk_size)}, expected {expected}")


def read_deprecated(op: str, state_v_first: bool, deprecated: Mapping[str, bool]) -> bool:
    """state_v_first, after what FLA renamed or removed: `transpose_state_layout` and `head_first`."""
    if unknown := sorted(deprecated.keys() - {RENAMED, "head_first"}):
        raise TypeError(f"{op}: {', '.join(unknown)} is no argument of this function")
    if deprecated.get("head_first"):
        raise ValueError(f"{op}: head_first is True, expected tensors [B, T, H, …]: transpose(1, 2) them")
    if "head_first" in deprecated:
        warnings.warn(f"{op}: head_first was removed from FLA, tensors are [B, T, H, …]", DeprecationWarning, 3)
    if RENAMED in deprecated:
        if state_v_first:
            raise ValueError(f"{op}: {RENAMED} is the old name of state_v_first, expected one of them")
        warnings.warn(f"{op}: {RENAMED} is the old name of state_v_first", DeprecationWarning, 3)
    return bool(deprecated.get(RENAMED, state_v_first))


def final_state(S: Tensor, output_final_state: bool, state_v_first: bool = False) -> Tensor | None:
    """[N, HV, K, V], or [N, HV, V, K]; None if it is not asked for."""
    if not output_final_state:
        return None
    return S.mT.contiguous() if state_v_first else S
