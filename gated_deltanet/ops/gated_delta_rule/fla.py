"""The gated delta rule by flash-linear-attention's kernels, 0.6 or newer, which have a gradient of their own."""

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore[reportMissingImports]


def rule(q, k, v, log_alpha, beta, state, cu_seqlens, normalise=False):
    """normalise: q and k are made unit vectors first, and q scaled by d_k^−½, as in `gated_delta_mix`."""
    return chunk_gated_delta_rule(
        q, k, v, g=log_alpha, beta=beta, scale=q.shape[-1] ** -0.5 if normalise else 1.0, initial_state=state,
        output_final_state=True, use_qk_l2norm_in_kernel=normalise,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64),
    )  # fmt: skip
