"""Linear attention with and without decay, section 2.1 of the paper."""

from torch import Tensor

from .. import checks, gpu
from ..gated_delta_rule import WIDEST
from ..launches import deferred, triton_operator
from ..library import empty_contiguous, operator, without_autocast, without_gradient
from ..packing import each_sequence
from . import chunkwise, cpp
from .parallel import parallel
from .reference import recurrence

SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor state, Tensor? cu_seqlens) -> (Tensor, Tensor)"


def _fake(q, k, v, log_alpha, state, cu_seqlens):
    return empty_contiguous(v), empty_contiguous(state)


def _per_sequence(form):
    def forward(q, k, v, log_alpha, state, cu_seqlens):
        return each_sequence("linear_attention", form, (q, k, v, log_alpha), state, cu_seqlens)

    return forward


BACKENDS = {
    "reference": operator("linear_attention_reference", SCHEMA, _per_sequence(recurrence), _fake),
    "parallel": operator("linear_attention_parallel", SCHEMA, _per_sequence(parallel), _fake),
    "chunkwise": operator("linear_attention_chunkwise", SCHEMA, chunkwise.forward, _fake, chunkwise.backward),
    "cpp": cpp.attention,
    "triton": triton_operator("linear_attention_triton", SCHEMA, _fake, f"{__name__}.triton_attention"),
    "fla": deferred(f"{__name__}.fla", "attention"),
}
step_on_gpu = deferred("gated_deltanet.ops.gated_delta_rule.triton_steps", "linear_step")


def _beyond(d_k: int, decays: int) -> str | None:
    """Why kernels in Triton do not take these sizes. decays: of a token and head."""
    if decays > 1:
        return "takes one decay a token, log_alpha has one a key"
    return f"takes d_k up to {WIDEST}, q has {d_k}" if d_k > WIDEST else None


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor | None = None,
    state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """For each head and token,

        S_t = α_t S_{t−1} + k_t v_tᵀ        o_t = S_tᵀ q_t

    which is section 2.1 of the paper with S transposed to [d_k, d_v]. α_t is a number, or diag(α_t) over the keys.

    q, k: [B, L, H, d_k]. v: [B, L, H_v, d_v], H_v a multiple of H; value head i reads key head i // (H_v / H).
    log_alpha: ≤ 0; −inf forgets everything. One of
        None                   linear attention (α = 1)
        [H_v]                  a fixed decay: RetNet, Lightning Attention
        [B, L, H_v]            one decay a token: Mamba2's SSD (q = C, k = B, v = Δ x, log_alpha = Δ A)
        [B, L, H_v, d_k]       one decay a token and key: GLA, HGRN2
    state: [N, H_v, d_k, d_v] before the first token, zero if None; float32, or float64 with float64 inputs.
    cu_seqlens: [N + 1], packs N sequences in one row (B = 1). Without it N = B.
    backend: "reference" (the recurrence), "parallel" (O(L²), for study), "chunkwise", "cpp" (native, on a CPU,
    float32 and bfloat16), "triton" (on a GPU, d_k ≤ 256, not float64, not with a decay a key), "fla"
    (flash-linear-attention, on a GPU), or "auto": cpp where it can run, triton on a GPU that it is compiled for in
    tests, else chunkwise.

    Returns o: [B, L, H_v, d_v], in v's dtype, and the state after the last token of each sequence.
    """
    op = "linear_attention"
    sizes, log_alpha = _check(op, q, k, v, log_alpha, "B L")
    checks.check_log_alpha(op, log_alpha)
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, q)
    state = checks.check_state(op, state, "N H_v d_k d_v", sizes, like=q)
    beyond = _beyond(sizes["d_k"], log_alpha.shape[-1])
    form = checks.choose_backend(op, BACKENDS, backend, auto="chunkwise", like=q, beyond=beyond)
    return form(q, k, v, log_alpha, state, cu_seqlens)


@without_autocast
def linear_attention_step_(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor | None, state: Tensor) -> Tensor:
    """One token of decoding: updates `state` in place and returns o: [N, H_v, d_v]. No gradient.

    q, k: [N, H, d_k], v: [N, H_v, d_v], log_alpha: None, [H_v], [N, H_v] or [N, H_v, d_k],
    state: [N, H_v, d_k, d_v], as in `linear_attention`.
    """
    op = "linear_attention_step_"
    sizes, log_alpha = _check(op, q, k, v, log_alpha, "N")
    checks.check_step_state(op, state, "N H_v d_k d_v", sizes, like=q)
    checks.check_no_grad(op, q, k, v, log_alpha, state)
    can = without_gradient(q, k, v, log_alpha, state) and state.is_contiguous()
    if can and gpu.preferred(q) and not _beyond(sizes["d_k"], log_alpha.shape[-1]):
        return step_on_gpu(*(x.contiguous() for x in (q, k, v, log_alpha)), state)
    q, k = (x.to(state.dtype).repeat_interleave(v.shape[1] // x.shape[1], 1)[..., None, :] for x in (q, k))
    state *= log_alpha.exp()[..., None]
    state += k.mT * v.to(state.dtype)[..., None, :]
    return (q @ state).squeeze(-2).to(v.dtype)


def _check(
    op: str, q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor | None, tokens: str
) -> tuple[dict[str, int], Tensor]:
    """Sizes by axis name, and log_alpha as [*tokens, H_v, 1 or d_k]. tokens: the axes before the heads."""
    shapes = ["H_v", f"{tokens} H_v", f"{tokens} H_v d_k"]
    fits = [axes for axes in shapes if isinstance(log_alpha, Tensor) and log_alpha.ndim == len(axes.split())]
    if log_alpha is not None and not fits:
        found = list(log_alpha.shape) if isinstance(log_alpha, Tensor) else f"a {type(log_alpha).__name__}"
        expected = " or ".join(f"[{axes.replace(' ', ', ')}]" for axes in shapes)
        raise ValueError(f"{op}: log_alpha is {found}, expected a tensor {expected}")
    axes = fits[0] if fits else f"? {tokens} H_v"
    sizes = checks.check_shapes(
        op,
        q=(q, f"{tokens} H d_k"),
        k=(k, f"{tokens} H d_k"),
        v=(v, f"{tokens} H_v d_v"),
        log_alpha=(log_alpha, axes),
    )
    checks.check_groups(op, sizes["H"], sizes["H_v"])
    dtype = checks.check_floats(op, q=q, k=k, v=v)
    checks.check_gates(op, log_alpha=log_alpha)
    if log_alpha is None:
        log_alpha = v.new_zeros(v.shape[:-1], dtype=dtype)
    per_key = axes == shapes[-1]
    return sizes, log_alpha.to(dtype) if per_key else log_alpha.to(dtype).expand(v.shape[:-1])[..., None]
