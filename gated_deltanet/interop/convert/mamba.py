"""Mamba and Mamba2 in transformers: names, config.json both ways."""

from math import inf
from typing import Any

from gated_deltanet.files import shaped
from gated_deltanet.layers.mamba import Mamba
from gated_deltanet.layers.mamba2 import Mamba2
from gated_deltanet.models.config import ModelConfig

from .accounting import Shapes, Values, count_layers, shortest, size
from .fla_config import mamba2_of
from .joints import Joint, singles

LAYERS = "backbone.layers."
TOP = {
    "embedding.weight": "backbone.embeddings.weight",
    "norm.weight": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}
BOTH = {
    "mixer_norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.in_proj.weight",
    "mixer.conv.weight": "mixer.conv1d.weight",
    "mixer.conv.bias": "mixer.conv1d.bias",
    "mixer.decay.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
    "mixer.out_proj.weight": "mixer.out_proj.weight",
}
MAMBA = BOTH | {
    "mixer.x_proj.weight": "mixer.x_proj.weight",
    "mixer.dt_proj.weight": "mixer.dt_proj.weight",
    "mixer.decay.dt_bias": "mixer.dt_proj.bias",
}
MAMBA2 = BOTH | {"mixer.decay.dt_bias": "mixer.dt_bias", "mixer.out_norm.weight": "mixer.norm.weight"}
NO_LIMIT = ([0.0, inf], [0.0, {"__float__": "Infinity"}])  # of Δ, as written before and since transformers 5


def joints(config: ModelConfig) -> list[Joint]:
    names = MAMBA if isinstance(config.mixer(0), Mamba) else MAMBA2
    layers = range(config.n_layers)
    return singles(TOP) + [
        joint for i in layers for joint in singles(names, ours=f"layers.{i}.", theirs=f"{LAYERS}{i}.")
    ]


def infer(values: Values, shapes: Shapes) -> ModelConfig:
    """The size of Mamba2's states and eps are config.json's, the rest is what the tensors tell."""
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act is {values['hidden_act']!r}, expected 'silu'")
    if values.get("time_step_limit", NO_LIMIT[0]) not in NO_LIMIT:
        raise ValueError(f"time_step_limit is {values['time_step_limit']}, expected none: 0 to infinity")
    first = values["model_type"] == "mamba"
    vocab_size, d_model = size(shapes, TOP["embedding.weight"], 2)
    at = [f"{LAYERS}{layer}.mixer" for layer in range(count_layers(shapes, LAYERS))]
    mixers = [mamba_of(shapes, each) if first else mamba2_of(values, shapes, each) for each in at]
    return ModelConfig(
        d_model=d_model,
        n_layers=len(mixers),
        mixers=shortest(mixers),
        d_ff=0,
        vocab_size=vocab_size,
        tied=shaped(values.get("tie_word_embeddings", first), bool, "tie_word_embeddings"),
        norm_eps=shaped(values.get("layer_norm_epsilon", 1e-5), float, "layer_norm_epsilon"),
    )


def mamba_of(shapes: Shapes, at: str) -> Mamba:
    d_inner, d_state = size(shapes, f"{at}.A_log", 2)
    dt_rank, conv_size = size(shapes, f"{at}.dt_proj.weight", 2)[1], size(shapes, f"{at}.conv1d.weight", 3)[2]
    return Mamba(d_inner, dt_rank, d_state, conv_size)


def describe(config: ModelConfig) -> dict[str, Any]:
    """config.json, or an error that says what cannot be said in it."""
    (mixer,) = set(config.mixers) if len(set(config.mixers)) == 1 else (None,)
    name = "mamba" if isinstance(mixer, Mamba) else "mamba2"
    if not isinstance(mixer, Mamba | Mamba2):
        raise ValueError(f"the model has several kinds of mixers, transformers' {name} has one")
    if config.d_ff:
        raise ValueError(f"d_ff is {config.d_ff}, transformers' {name} has no MLP")
    inner = mixer.d_inner if isinstance(mixer, Mamba) else mixer.n_heads * mixer.d_v
    if inner % config.d_model:
        raise ValueError(f"{name} is {inner} wide, transformers has whole multiples of d_model, {config.d_model}")
    values = {
        "model_type": name,
        "architectures": [f"{name.capitalize()}ForCausalLM"],
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "layer_norm_epsilon": config.norm_eps,
        "expand": inner // config.d_model,
        "conv_kernel": mixer.conv_size,
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": True,
    }
    if isinstance(mixer, Mamba):
        return values | {"state_size": mixer.d_state, "time_step_rank": mixer.dt_rank, "intermediate_size": inner}
    heads = {"num_heads": mixer.n_heads, "head_dim": mixer.d_v, "n_groups": mixer.n_groups}
    return values | heads | {"state_size": mixer.d_k}
