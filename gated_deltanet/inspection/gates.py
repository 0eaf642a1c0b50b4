"""The gates of a mixer, from what it reads: each computed as the mixer's own `forward` does."""

from functools import singledispatch
from typing import Any, NamedTuple

from torch import Tensor, nn

from gated_deltanet.layers.gated_deltanet import GatedDeltaNetMixer
from gated_deltanet.layers.hgrn2 import HGRN2Mixer
from gated_deltanet.layers.longhorn import LonghornMixer
from gated_deltanet.layers.mamba import MambaMixer
from gated_deltanet.layers.mamba2 import Mamba2Mixer
from gated_deltanet.layers.retnet import RetNetMixer


class Gates(NamedTuple):
    log_alpha: Tensor | None = None  # [B, L, H, d]: d = 1, or the channels that decay on their own
    beta: Tensor | None = None  # [B, L, H]


@singledispatch
def gates(mixer: nn.Module, x: Tensor, state: Any = None) -> Gates:
    """Of the tokens x: [B, L, d_model], the mixer's input. state: the mixer's, before them.

    Attention and linear attention have none.
    """
    return Gates()


@gates.register
def _(mixer: GatedDeltaNetMixer, x: Tensor, state: Any = None) -> Gates:
    """DeltaNet's too, without α. DeltaProduct writes n_h times a token: β is the mean."""
    c = mixer.config
    beta = c.beta_max * mixer.b_proj(x).float().sigmoid()
    beta = beta.unflatten(-1, (c.n_h, -1)).mean(-2)
    if mixer.decay is None or mixer.a_proj is None:
        return Gates(None, beta)
    return Gates((mixer.decay.A() * mixer.decay.dt(mixer.a_proj(x)))[..., None], beta)


@gates.register
def _(mixer: LonghornMixer, x: Tensor, state: Any = None) -> Gates:
    return Gates(None, mixer.b_proj(x).float().sigmoid())


@gates.register
def _(mixer: Mamba2Mixer, x: Tensor, state: Any = None) -> Gates:
    raw_dt = mixer.in_proj(x).split(mixer.widths, -1)[-1]
    return Gates((mixer.decay.A() * mixer.decay.dt(raw_dt))[..., None])


@gates.register
def _(mixer: RetNetMixer, x: Tensor, state: Any = None) -> Gates:
    """Fixed: the same for every token."""
    return Gates(mixer.log_alpha(x)[:, None].expand(*x.shape[:2], -1, 1))


@gates.register
def _(mixer: HGRN2Mixer, x: Tensor, state: Any = None) -> Gates:
    return Gates(mixer.log_forget(x).unflatten(-1, (mixer.config.n_heads, -1)))


@gates.register
def _(mixer: MambaMixer, x: Tensor, state: Any = None) -> Gates:
    """Mamba has no heads: one, of all d_inner · d_state channels."""
    z, _ = mixer.conv(mixer.in_proj(x).chunk(2, -1)[0], state and state.conv)
    raw_dt = mixer.x_proj(z)[..., : mixer.config.dt_rank]
    dt = mixer.decay.dt(mixer.dt_proj(raw_dt))
    return Gates((dt[..., None] * mixer.decay.A()).flatten(2)[:, :, None])
