"""Mamba's selective scan (S6), one of the models the paper compares with."""

from torch import Tensor

from .. import checks
from ..library import empty_contiguous, operator, without_autocast
from ..packing import each_sequence
from . import chunkwise, cpp
from .reference import recurrence

SCHEMA = "(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor state, Tensor? cu_seqlens) -> (Tensor, Tensor)"


def _fake(x, dt, A, B, C, state, cu_seqlens):
    return empty_contiguous(x), empty_contiguous(state)


def _reference(x, dt, A, B, C, state, cu_seqlens):
    def of_sequence(x, dt, B, C, h):
        return recurrence(x, dt, A, B, C, h)

    return each_sequence("selective_scan", of_sequence, (x, dt, B, C), state, cu_seqlens)


BACKENDS = {
    "reference": operator("selective_scan_reference", SCHEMA, _reference, _fake),
    "chunkwise": operator("selective_scan_chunkwise", SCHEMA, chunkwise.forward, _fake, chunkwise.backward),
    "cpp": cpp.scan,
}


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """For each channel d and token,

        h_t = exp(dt_t A_d) h_{t−1} + dt_t x_t B_t        y_t = C_t · h_t

    with h of n numbers: Mamba's S6. The skip D x, the softplus of dt and the SiLU gate are the layer's.

    x: [batch, L, D]. dt: [batch, L, D], after the softplus, ≥ 0; 0 leaves the state as it is.
    A: [D, n], finite, < 0 for a decay. B, C: [batch, L, n].
    state: [N, D, n] before the first token, zero if None; float32, or float64 with float64 inputs.
    cu_seqlens: [N + 1], packs N sequences in one row (batch = 1). Without it N = batch.
    backend: "reference" (the recurrence), "chunkwise", "cpp" (native, on a CPU, float32 and bfloat16), or "auto":
    cpp where it can run, else chunkwise.

    Returns y: [batch, L, D], in x's dtype, and the state after the last token of each sequence.
    """
    op = "selective_scan"
    sizes, dt, A = _check(op, x, dt, A, B, C, "batch L")
    _check_dt(op, dt)
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, x)
    state = checks.check_state(op, state, "N D n", sizes, like=x)
    form = checks.choose_backend(op, BACKENDS, backend, auto="chunkwise", like=x)
    return form(x, dt, A, B, C, state, cu_seqlens)


@without_autocast
def selective_scan_step_(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> Tensor:
    """One token of decoding: updates `state` in place and returns y: [N, D]. No gradient.

    x, dt: [N, D], A: [D, n], B, C: [N, n], state: [N, D, n], as in `selective_scan`.
    """
    op = "selective_scan_step_"
    sizes, dt, A = _check(op, x, dt, A, B, C, "N")
    checks.check_step_state(op, state, "N D n", sizes, like=x)
    checks.check_no_grad(op, x, dt, A, B, C, state)
    state *= (dt[..., None] * A).exp()
    state += (dt * x.to(state.dtype))[..., None] * B.to(state.dtype)[:, None, :]
    return (state @ C.to(state.dtype)[..., None]).squeeze(-1).to(x.dtype)


def _check(
    op: str, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, tokens: str
) -> tuple[dict[str, int], Tensor, Tensor]:
    """Sizes by axis name, and dt and A in the state's dtype. tokens: the axes before the channels."""
    sizes = checks.check_shapes(
        op,
        x=(x, f"{tokens} D"),
        dt=(dt, f"{tokens} D"),
        A=(A, "D n"),
        B=(B, f"{tokens} n"),
        C=(C, f"{tokens} n"),
    )
    dtype = checks.check_floats(op, x=x, B=B, C=C)
    checks.check_gates(op, dt=dt, A=A)
    return sizes, dt.to(dtype), A.to(dtype)


def _check_dt(op: str, dt: Tensor) -> None:
    if checks.values_are_cheap(dt) and dt.numel() and (least := dt.amin().item()) < 0:
        raise ValueError(f"{op}: dt holds {least:.4g}, expected values ≥ 0 (apply softplus first)")
