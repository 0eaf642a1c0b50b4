"""What is compared: the paper's ten systems, Mamba2 with Gated DeltaNet's state, the variants of tables S.1 and S.2."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gated_deltanet.models import ModelConfig, count, get_preset
from gated_deltanet.models.presets import PAPER

MATCHED = "mamba2-matched"
ORDERS = ("gdn-swa-mamba2", "gdn-mamba2-swa", "mamba2-swa-gdn", "gdn-h2")  # table S.2
BASE = "Head Dim 128"
ABLATIONS: Mapping[str, Mapping[str, Any]] = {  # table S.1's rows; heads in proportion: d_model has room for 1, 2 or 4
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
    "Head Dim 64": {"heads": 4},
    "Head Dim 256": {"heads": 1},
}
TEXT = (*PAPER, MATCHED)


def config_of(system: str, size: str, vocab_size: int) -> ModelConfig:
    """A preset or a variant of Gated DeltaNet, with so much MLP that all have the same parameters, within 2 %."""
    base = replace(get_preset(f"gdn-{size}"), vocab_size=vocab_size)
    if system in ABLATIONS:
        config = replace(base, mixers=(varied(base.mixers[0], 3 * base.d_model // 4, **ABLATIONS[system]),))
    else:
        config = replace(get_preset(f"{system}-{size}"), vocab_size=vocab_size)
    missing = count.parameters(base) - count.parameters(config)
    more = 4 * round(missing / (12 * config.d_model * config.n_layers))
    return replace(config, d_ff=config.d_ff + more) if config.d_ff else config


def varied(mixer: Any, keys: int, heads: int = 2, **changes: Any) -> Any:
    """keys: of all heads together."""
    return replace(mixer, n_heads=heads, d_k=keys // heads, d_v=2 * keys // heads, **changes)
