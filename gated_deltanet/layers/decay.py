"""How fast a layer forgets: Mamba's parameters, which stay float32 whatever becomes of the model."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

HALF = (torch.bfloat16, torch.float16)


class Decay(nn.Module):
    """log α = −exp(A_log) · dt with dt = softplus(raw + dt_bias).

    n heads: A_log, dt_bias: [n] (Mamba2, Gated DeltaNet). With d_state, n channels: A_log [n, d_state] (Mamba).
    least: the smallest A of a head at the start, its authors' 1 in Mamba2 and 0 in Gated DeltaNet.
    Rounding A_log or dt_bias to half precision changes how far the layer remembers, so `.to(torch.bfloat16)`,
    `.half()` and the like leave them as they are.
    """

    def __init__(self, n: int, d_state: int | None = None, least: float = 1.0):
        super().__init__()
        self.least = least
        shape = (n,) if d_state is None else (n, d_state)
        self.A_log = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(n, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, least: float | None = None) -> None:
        """A uniform in [least, 16], or 1 … d_state in every channel; dt log-uniform in [1e-3, 1e-1]."""
        if self.A_log.is_meta:
            return  # nothing to fill, and on the meta device these calls import most of torch's compiler
        if self.A_log.ndim == 1:
            self.A_log.uniform_(self.least if least is None else least, 16).clamp_(min=1e-4).log_()
        else:
            self.A_log.copy_(torch.arange(1, self.A_log.shape[1] + 1, device=self.A_log.device).log())
        dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def dt(self, raw: Tensor) -> Tensor:
        """raw: [..., n], a projection. Float32 at least."""
        return softplus(raw.to(self.dt_bias.dtype) + self.dt_bias)

    def A(self) -> Tensor:
        return -self.A_log.exp()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def without_rounding(x: Tensor) -> Tensor:
            moved = fn(x)
            return x.to(moved.device) if moved.dtype in HALF else moved

        return super()._apply(without_rounding, recurse)
