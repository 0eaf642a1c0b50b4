"""Linear attention by flash-linear-attention's kernels, 0.6 or newer, which have a gradient of their own."""

import torch
from fla.ops.gla import chunk_gla  # pyright: ignore[reportMissingImports]
from fla.ops.simple_gla import chunk_simple_gla  # pyright: ignore[reportMissingImports]


def attention(q, k, v, log_alpha, state, cu_seqlens):
    """log_alpha: [B, L, H_v, 1 or d_k]. FLA's heads share no keys, so these are repeated."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    scalar = log_alpha.shape[-1] == 1
    function, g = (chunk_simple_gla, log_alpha[..., 0]) if scalar else (chunk_gla, log_alpha)
    ends = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64)
    return function(q, k, v, g=g, scale=1.0, initial_state=state, output_final_state=True, cu_seqlens=ends)
