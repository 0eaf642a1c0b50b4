"""Mamba's selective scan chunk by chunk: decays, inputs and outputs of all tokens at once, the state token by token.

The state has a decay of its own in every entry, so nothing here is a matrix product. A scan by doubling or over chunks
in parallel passes over [tokens, D, n] several times more than the plain loop, and is slower as soon as D n is in the
thousands. What chunks give is memory: the D channels stand where other ops have heads, so once D is large a segment is
one chunk of each sequence, and only its states are alive at once.
"""

import torch
from torch import Tensor

from .. import chunks
from ..packing import sequence_lengths

CHUNK = 32


def segment(x: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """m chunks of c tokens. x, dt: [m, N, D, c], B, C: [m, N, 1, c, n], A: [D, n], h: [N, D, n]."""
    m = x.shape[0]
    x, dt = (z.to(h.dtype).movedim(-1, 1).flatten(0, 1) for z in (x, dt))  # [tokens, N, D]
    B, C = (z.to(h.dtype).movedim(-2, 1).flatten(0, 1) for z in (B, C))  # [tokens, N, 1, n]
    decay, added = (dt[..., None] * A).exp(), (dt * x)[..., None] * B  # [tokens, N, D, n]
    states = []
    for decay_t, added_t in zip(decay.unbind(), added.unbind(), strict=True):
        h = torch.addcmul(added_t, decay_t, h)
        states.append(h)
    y = (torch.stack(states) @ C.mT).squeeze(-1)
    return y.unflatten(0, (m, -1)).movedim(1, -1), h


def forward(x, dt, A, B, C, state, cu_seqlens):
    tokens, lengths = (x, dt, B[:, :, None], C[:, :, None]), sequence_lengths("selective_scan", x, cu_seqlens)
    return chunks.forward(segment, CHUNK, tokens, (A,), state, lengths, like=x)


def backward(grads, x, dt, A, B, C, state, cu_seqlens):
    tokens, lengths = (x, dt, B[:, :, None], C[:, :, None]), sequence_lengths("selective_scan", x, cu_seqlens)
    dx, ddt, dB, dC, dA, dh = chunks.backward(segment, CHUNK, grads, tokens, (A,), state, lengths)
    return dx, ddt, dA, dB.squeeze(2), dC.squeeze(2), dh
