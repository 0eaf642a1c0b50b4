"""What the tensors of a model are called in flash-linear-attention (FLA), in its layouts of today and December 2024.

In December 2024 the MLP's gate and up projections were one matrix, the norms could stand inside what they come before
(`norm_first`), and Gated DeltaNet held a vector D that it did not use.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.deltanet import DeltaNet
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.layers.hgrn2 import HGRN2
from gated_deltanet.layers.linear_attention import LinearAttention
from gated_deltanet.layers.mamba import Mamba
from gated_deltanet.layers.mamba2 import Mamba2
from gated_deltanet.layers.retnet import RetNet
from gated_deltanet.models.config import ModelConfig

from .accounting import Shapes
from .checkpoint import Piece

QKV = {f"{x}_proj.weight": f"attn.{x}_proj.weight" for x in "qkv"} | {"out_proj.weight": "attn.o_proj.weight"}
DELTA = QKV | {f"{x}_conv.weight": f"attn.{x}_conv1d.weight" for x in "qkv"}
DELTA |= {
    "a_proj.weight": "attn.a_proj.weight",
    "b_proj.weight": "attn.b_proj.weight",
    "decay.A_log": "attn.A_log",
    "decay.dt_bias": "attn.dt_bias",
    "gate_proj.weight": "attn.g_proj.weight",
    "out_norm.weight": "attn.o_norm.weight",
}
MIXERS = {  # ours -> FLA's, within a layer
    GatedDeltaNet: DELTA,
    DeltaNet: DELTA,
    Attention: QKV,
    RetNet: QKV | {"gate_proj.weight": "attn.g_proj.weight", "out_norm.weight": "attn.g_norm_swish_gate.weight"},
    HGRN2: {
        "q_proj.weight": "attn.q_proj.weight",
        "f_proj.weight": "attn.f_proj.weight",
        "v_proj.weight": "attn.i_proj.weight",
        "out_norm.weight": "attn.g_norm.weight",
        "out_proj.weight": "attn.o_proj.weight",
    },
    LinearAttention: QKV | {"out_norm.weight": "attn.norm.weight"},
    Mamba: {
        "in_proj.weight": "mixer.in_proj.weight",
        "conv.weight": "mixer.conv1d.weight",
        "conv.bias": "mixer.conv1d.bias",
        "x_proj.weight": "mixer.x_proj.weight",
        "dt_proj.weight": "mixer.dt_proj.weight",
        "decay.A_log": "mixer.A_log",
        "decay.dt_bias": "mixer.dt_proj.bias",
        "D": "mixer.D",
        "out_proj.weight": "mixer.out_proj.weight",
    },
    Mamba2: {
        "in_proj.weight": "mixer.in_proj.weight",
        "conv.weight": "mixer.conv1d.weight",
        "conv.bias": "mixer.conv1d.bias",
        "decay.A_log": "mixer.A_log",
        "decay.dt_bias": "mixer.dt_bias",
        "D": "mixer.D",
        "out_norm.weight": "mixer.norm.weight",
        "out_proj.weight": "mixer.out_proj.weight",
    },
}
BLOCK = {
    "mixer_norm.weight": "attn_norm.weight",
    "mlp_norm.weight": "mlp_norm.weight",
    "mlp.gate_proj.weight": "mlp.gate_proj.weight",
    "mlp.up_proj.weight": "mlp.up_proj.weight",
    "mlp.out_proj.weight": "mlp.down_proj.weight",
}
TOP = {
    "embedding.weight": "model.embeddings.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
MAMBA_TOP = TOP | {"embedding.weight": "backbone.embeddings.weight", "norm.weight": "backbone.norm_f.weight"}
BOUNDS = "model.lower_bounds"  # of HGRN2, all layers in one
HGRN2_EPS = 1e-5  # of the norm of its outputs, whatever norm_eps is


class Layout(NamedTuple):
    """How a checkpoint of FLA is laid out, apart from its architecture."""

    fused_mlp: bool = False
    norm_first: bool = False
    unused_D: bool = False


def find_layout(shapes: Iterable[str]) -> Layout:
    names = {name.split(".", 3)[-1] for name in shapes if name.startswith("model.layers.")}
    fused = "mlp.gate_proj.weight" in names and "mlp.up_proj.weight" not in names
    norm_first = "attn.norm.weight" in names and "attn_norm.weight" not in names  # else it is linear attention's own
    return Layout(fused, norm_first, "attn.D" in names)


def is_mamba(config: ModelConfig) -> bool:
    """Mamba, Mamba2 or Samba."""
    return any(isinstance(mixer, Mamba | Mamba2) for mixer in config.mixers)


def fla_name(ours: str, config: ModelConfig, layout: Layout) -> str:
    """Of one of our tensors, all but HGRN2's bounds."""
    if not ours.startswith("layers."):
        return (MAMBA_TOP if is_mamba(config) else TOP)[ours]
    _, layer, name = ours.split(".", 2)
    prefix = f"{'backbone' if is_mamba(config) else 'model'}.layers.{layer}"
    if name.startswith("mixer."):
        theirs = MIXERS[type(config.mixer(int(layer)))][name.removeprefix("mixer.")]
        return f"{prefix}.{theirs.replace('attn.', 'mixer.', 1) if is_mamba(config) else theirs}"
    if is_mamba(config) and name == "mixer_norm.weight":
        return f"{prefix}.{'mixer_norm' if config.d_ff else 'norm'}.weight"
    if layout.norm_first and name in ("mixer_norm.weight", "mlp_norm.weight"):
        return f"{prefix}.{'attn' if name == 'mixer_norm.weight' else 'mlp'}.norm.weight"
    if layout.fused_mlp and name == "mlp.up_proj.weight":
        name = "mlp.gate_proj.weight"
    return f"{prefix}.{BLOCK[name]}"


def to_ours(config: ModelConfig, ours: Shapes, layout: Layout, prefix: str) -> tuple[list[Piece], dict]:
    """Our tensors, made of FLA's, and the shapes that these must have. ours: the shapes of the model's."""
    pieces, expected = [], {}
    for name, shape in ours.items():
        if name.endswith("mixer.lower_bound"):
            theirs, their_shape = BOUNDS, (config.n_layers, shape[0])
            make = partial(bound_of, layer=int(name.split(".")[1]))
        else:
            theirs, their_shape = fla_name(name, config, layout), fla_shape(name, shape, layout)
            make = partial(part_of, half=half_of(name, layout), shape=shape, scale=scale_of(name, config))
        expected[theirs] = their_shape
        pieces.append(Piece(prefix + name, shape, (theirs,), make))
    return pieces, expected


def to_fla(config: ModelConfig, ours: Shapes, layout: Layout, prefix: str) -> list[Piece]:
    """FLA's tensors, made of ours."""
    pieces = []
    for name, shape in ours.items():
        if name.endswith("mixer.lower_bound") or half_of(name, layout) == 1:
            continue
        sources = (prefix + name,)
        if half_of(name, layout) == 0:
            sources = (prefix + name, prefix + name.replace("gate_proj", "up_proj"))
        their_shape = fla_shape(name, shape, layout)
        make = partial(whole_of, shape=their_shape, scale=1 / scale_of(name, config))
        pieces.append(Piece(fla_name(name, config, layout), their_shape, sources, make))
    if bounds := [name for name in ours if name.endswith("mixer.lower_bound")]:
        sources = tuple(prefix + name for name in bounds)
        pieces.append(Piece(BOUNDS, (config.n_layers, *ours[bounds[0]]), sources, all_bounds))
    if isinstance(config.mixer(0), HGRN2) and config.n_layers == 1:
        keys = ours["layers.0.mixer.f_proj.weight"][0]
        pieces.append(Piece(BOUNDS, (1, keys), (), partial(torch.zeros, 1, keys)))  # of which the first is not used
    return pieces + (unused_D(config) if layout.unused_D else [])


def unused_D(config: ModelConfig) -> list[Piece]:
    mixers = [(layer, config.mixer(layer)) for layer in range(config.n_layers)]
    heads = [(layer, mixer.H_v) for layer, mixer in mixers if isinstance(mixer, GatedDeltaNet) and mixer.decay]
    return [Piece(f"model.layers.{layer}.attn.D", (H_v,), (), partial(torch.ones, H_v)) for layer, H_v in heads]


def half_of(ours: str, layout: Layout) -> int | None:
    """Which half of the fused matrix of the MLP a tensor is."""
    if not layout.fused_mlp or not ours.endswith((".mlp.gate_proj.weight", ".mlp.up_proj.weight")):
        return None
    return 0 if "gate_proj" in ours else 1


def fla_shape(ours: str, shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Convolutions have an axis of one channel."""
    if half_of(ours, layout) is not None:
        return (2 * shape[0], shape[1])
    return (shape[0], 1, shape[1]) if ours.endswith("conv.weight") else shape


def scale_of(ours: str, config: ModelConfig) -> float:
    """By what our tensor is larger than FLA's: 1 but for the values of HGRN2.

    FLA scales its queries by d_k^−½ and ours does not. The norm behind them takes that out but for its eps, which is
    FLA's after this: o c / √(mean((o c)²) + norm_eps) = o s / √(mean((o s)²) + eps) for c² = s² norm_eps / eps.
    """
    if not ours.startswith("layers.") or not ours.endswith(".mixer.v_proj.weight"):
        return 1.0
    mixer = config.mixer(int(ours.split(".")[1]))
    return (config.norm_eps / (HGRN2_EPS * mixer.d_k)) ** 0.5 if isinstance(mixer, HGRN2) else 1.0


def part_of(theirs: Tensor, half: int | None, shape: tuple[int, ...], scale: float) -> Tensor:
    part = (theirs if half is None else theirs.chunk(2)[half]).reshape(shape)
    return part if scale == 1 else part * scale


def whole_of(*ours: Tensor, shape: tuple[int, ...], scale: float) -> Tensor:
    whole = torch.cat(ours).reshape(shape)
    return whole if scale == 1 else whole * scale


def bound_of(lower_bounds: Tensor, layer: int) -> Tensor:
    """FLA's layer has the sum of the softmax's shares from 1 to its own; ours has σ(logit(layer / n) + lower_bound)."""
    shares = lower_bounds.double().softmax(0)
    below, above = shares[1 : layer + 1].sum(0), shares[0] + shares[layer + 1 :].sum(0)  # the bound, and 1 without it
    return (below / above).log() - math.log(layer / (len(shares) - layer))


def all_bounds(*lower_bound: Tensor) -> Tensor:
    """The inverse: shares whose sums are the bounds. They must rise with the layers, which ours need not."""
    n = len(lower_bound) + 1
    logits = [x.double() + math.log(i / (n - i)) for i, x in enumerate(lower_bound, 1)]
    bounds = torch.stack([torch.zeros_like(logits[0]), *(x.sigmoid() for x in logits)])
    shares = torch.cat([(-logits[-1]).sigmoid()[None], bounds.diff(dim=0)])  # the first is what the last bound leaves
    if (shares <= 0).any():
        layer = int((shares <= 0).any(1).nonzero()[0])
        raise ValueError(f"layers.{layer}.mixer.lower_bound falls below the layer before, FLA's bounds only rise")
    return shares.log()
