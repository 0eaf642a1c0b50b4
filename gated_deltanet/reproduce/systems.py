"""What is compared: the paper's ten systems, Mamba2 with Gated DeltaNet's state, the variants of tables S.1 and S.2."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gated_deltanet.models import ModelConfig, count, get_preset
from gated_deltanet.models.presets import PAPER

from .scales import Scale

BASES = {"400m": "gdn-official-0.4b", "1.3b": "gdn-official-0.4b"}  # table S.1's
ORDERS_SIZE = "500m"  # table S.2's
MATCHED = "mamba2-matched"
MIXERS_ONLY = "gdn-mixers-only"  # no claim's: built as Mamba2 is, to see what MLPs have to do with who is better
ORDERS = ("gdn-swa-mamba2", "gdn-mamba2-swa", "mamba2-swa-gdn", "gdn-h2")  # table S.2
BASE = "Head Dim 128"
ABLATIONS: Mapping[str, Mapping[str, Any]] = {  # table S.1's rows
    BASE: {},
    "naive Delta Rule": {"decay": False},
    "without Short Conv": {"conv_size": None},
    "without Output Gate": {"gate": False},
    "without Output Norm": {"out_norm": False},
    "L1-norm & ReLU": {"qk_norm": "l1", "feature_map": "relu"},
    "L1-norm & 1+ELU": {"qk_norm": "l1", "feature_map": "elu+1"},
    "L1-norm & SiLU": {"qk_norm": "l1"},
    "L2-norm & ReLU": {"feature_map": "relu"},
    "L2-norm & 1+ELU": {"feature_map": "elu+1"},
    "Head Dim 64": {"head_size": 0.5},
    "Head Dim 256": {"head_size": 2},
}
TEXT = (*PAPER, MATCHED)


def config_of(system: str, scale: Scale) -> ModelConfig:
    """A preset, a variant of Gated DeltaNet (table S.1) or another order of H2's mixers (S.2), equal in parameters.

    A laptop's systems get so much MLP that all have those of Gated DeltaNet, within 2 %, and windows of half a row.
    """
    if scale.recipe:
        return varied(get_preset(BASES[scale.size]), 9, system) if system in ABLATIONS else of_preset(system, scale)
    base = of_preset("gdn", scale)
    if system == MIXERS_ONLY:
        return mixers_only(base)
    config = varied(base, 2, system) if system in ABLATIONS else of_preset(system, scale)
    config = replace(config, mixers=tuple(halve_window(mixer, scale.length) for mixer in config.mixers))
    missing = count.parameters(base) - count.parameters(config)
    more = 4 * round(missing / (12 * config.d_model * config.n_layers))
    return replace(config, d_ff=config.d_ff + more) if config.d_ff else config


def of_preset(system: str, scale: Scale) -> ModelConfig:
    """The orders of table S.2 have presets at its own size and at the laptop's."""
    size = ORDERS_SIZE if scale.recipe and system in ORDERS[:3] else scale.size
    return replace(get_preset(f"{system}-{size}"), vocab_size=scale.vocab_size)


def varied(base: ModelConfig, heads: int, system: str) -> ModelConfig:
    """heads: that hold keys of ¾ d_model in table S.1's first row; those of half or twice the size in proportion."""
    changes = dict(ABLATIONS[system])
    size = changes.pop("head_size", 1)
    d_k = int(size * (3 * base.d_model // 4 // heads))
    mixer = replace(base.mixers[0], n_heads=int(heads / size), d_k=d_k, d_v=2 * d_k, **changes)
    return replace(base, mixers=(mixer,))


def mixers_only(base: ModelConfig) -> ModelConfig:
    """Twice the layers, none with an MLP, and values so wide that the parameters are the same."""
    mixer: Any = base.mixers[0]
    deep = replace(base, n_layers=2 * base.n_layers, d_ff=0)
    wider = [replace(deep, mixers=(replace(mixer, d_v=d_v),)) for d_v in range(mixer.d_v // 2, 2 * mixer.d_v)]
    return min(wider, key=lambda config: abs(count.parameters(config) - count.parameters(base)))


def halve_window(mixer: Any, length: int) -> Any:
    return replace(mixer, window=length // 2) if getattr(mixer, "window", None) else mixer
