"""Our ModelConfig as the config.json of flash-linear-attention (FLA), or an error that says what FLA does not have."""

from collections.abc import Mapping
from typing import Any

from gated_deltanet.layers import Mixer
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.deltanet import DeltaNet
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.layers.hgrn2 import HGRN2
from gated_deltanet.layers.linear_attention import LinearAttention
from gated_deltanet.layers.mamba import Mamba
from gated_deltanet.layers.mamba2 import Mamba2
from gated_deltanet.layers.retnet import RetNet
from gated_deltanet.models.config import ModelConfig

from .accounting import need
from .fla_config import FEATURES, TYPES, WITHOUT_MLP


def describe(config: ModelConfig, tokens: Mapping[str, Any], old: bool = False) -> dict[str, Any]:
    """tokens: the ids of generation_config.json. old: as of December 2024."""
    layers = [config.mixer(layer) for layer in range(config.n_layers)]
    others = [mixer for mixer in layers if not isinstance(mixer, Attention)]
    if len(set(others)) > 1:
        raise ValueError("the model has several mixers beside attention, FLA has one")
    main = others[0] if others else layers[0]
    model_type, values = mixer_values(main, config.d_model)
    if model_type == "mamba" and config.d_ff:
        model_type, values = "samba", samba_values(values, config)
    if not others and len(set(layers)) > 1:
        raise ValueError("the model has several kinds of attention, FLA's transformer has one")
    if (model_type in WITHOUT_MLP) == bool(config.d_ff):
        raise ValueError(f"d_ff is {config.d_ff}, FLA's {model_type} has {'no' if config.d_ff else 'an'} MLP")
    if model_type in (*WITHOUT_MLP, "hgrn2") and len(others) < len(layers):
        raise ValueError(f"the model has attention beside {model_type}, which FLA cannot say")
    if others and len(others) < len(layers):
        values["attn"] = attention_specs(layers, config.d_model, old)
    if old:
        check_old(model_type, values)
    common = {
        "model_type": model_type,
        "architectures": [TYPES[model_type]],
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "vocab_size": config.vocab_size,
        "norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
    }
    mlp = {"intermediate_size": config.d_ff} if config.d_ff and model_type != "samba" else {}
    return common | mlp | ({"hidden_act": "swish"} if config.d_ff else {}) | values | dict(tokens)


def samba_values(mamba: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Mamba, or attention, with MLPs, whose width FLA derives from a ratio."""
    if config.d_ff % 256:
        raise ValueError(f"d_ff is {config.d_ff}, FLA's samba has multiples of 256 only")
    names = {"dt_rank": "time_step_rank"}
    return {names.get(name, name): value for name, value in mamba.items()} | {
        "attn": None, "hidden_ratio": 1.5 * config.d_ff / config.d_model,
    }  # fmt: skip


def mixer_values(mixer: Mixer, d_model: int) -> tuple[str, dict[str, Any]]:
    """The model_type, and what its config says of the mixer."""
    if isinstance(mixer, DeltaNet):
        return delta_values(mixer.gated, d_model)
    if isinstance(mixer, GatedDeltaNet):
        return delta_values(mixer, d_model)
    if isinstance(mixer, Attention):
        return "transformer", attention_values(mixer, d_model)
    if isinstance(mixer, RetNet):
        need(mixer, "FLA", rope_theta=10000.0)
        ratios = {"expand_k": mixer.n_heads * mixer.d_k / d_model, "expand_v": mixer.n_heads * mixer.d_v / d_model}
        return "retnet", {"num_heads": mixer.n_heads, **ratios}
    if isinstance(mixer, HGRN2):
        need(mixer, "FLA", d_k=d_model // mixer.n_heads, d_v=d_model // mixer.n_heads)
        return "hgrn2", {"num_heads": mixer.n_heads, "expand_ratio": mixer.d_k}
    if isinstance(mixer, LinearAttention):
        need(mixer, "FLA", feature_map="relu" if mixer.feature_map == "relu" else "elu+1")
        ratios = {"expand_k": mixer.n_heads * mixer.d_k / d_model, "expand_v": mixer.n_heads * mixer.d_v / d_model}
        features = {"feature_map": mixer.feature_map.removesuffix("+1")}
        return "linear_attn", {"num_heads": mixer.n_heads, **ratios, **features}
    if isinstance(mixer, Mamba):
        if mixer.d_inner % d_model:
            raise ValueError(f"Mamba is {mixer.d_inner} wide, FLA has whole multiples of d_model, {d_model}")
        sizes = {"state_size": mixer.d_state, "conv_kernel": mixer.conv_size, "dt_rank": mixer.dt_rank}
        return "mamba", sizes | {"expand": mixer.d_inner // d_model}
    if isinstance(mixer, Mamba2):
        inner = mixer.n_heads * mixer.d_v
        if inner % d_model:
            raise ValueError(f"Mamba2 is {inner} wide, FLA has whole multiples of d_model, {d_model}")
        sizes = {"num_heads": mixer.n_heads, "head_dim": mixer.d_v, "state_size": mixer.d_k}
        return "mamba2", sizes | {
            "expand": inner // d_model, "n_groups": mixer.n_groups, "conv_kernel": mixer.conv_size,
        }  # fmt: skip
    raise ValueError(f"FLA has no {type(mixer).__name__} that we convert, expected one of {', '.join(TYPES)}")


def delta_values(mixer: GatedDeltaNet, d_model: int) -> tuple[str, dict[str, Any]]:
    need(mixer, "FLA", out_norm=True, beta_bias=False, out_eps=None)
    if mixer.beta_max not in (1, 2):
        raise ValueError(f"{type(mixer).__name__}: beta_max is {mixer.beta_max}, FLA has 1 and 2")
    conv = {"use_short_conv": True, "conv_size": mixer.conv_size} if mixer.conv_size else {"use_short_conv": False}
    common = {"num_heads": mixer.n_heads, "use_gate": mixer.gate, "allow_neg_eigval": mixer.beta_max == 2, **conv}
    if mixer.n_h > 1:
        need(mixer, "FLA", feature_map="silu", qk_norm="l2", n_v_heads=None)
        heads = {"head_dim": mixer.d_k, "expand_v": mixer.d_v / mixer.d_k, "num_householder": mixer.n_h}
        gates = {"use_output_gate": common.pop("use_gate"), "use_forget_gate": mixer.decay}
        return "gated_deltaproduct", common | heads | gates
    if mixer.decay:
        need(mixer, "FLA", feature_map="silu", qk_norm="l2")
        heads = {"head_dim": mixer.d_k, "expand_v": mixer.d_v / mixer.d_k, "num_v_heads": mixer.n_v_heads}
        return "gated_deltanet", common | heads
    need(mixer, "FLA", n_v_heads=None)
    if mixer.qk_norm == "l1" and mixer.feature_map == "silu":
        raise ValueError("GatedDeltaNet: qk_norm is 'l1' with feature_map 'silu', FLA has sums of what is ≥ 0")
    features = {
        "qk_activation": {ours: theirs for theirs, ours in FEATURES.items()}[mixer.feature_map],
        "qk_norm": "l2" if mixer.qk_norm == "l2" else "sum",
    }
    ratios = {"expand_k": mixer.n_heads * mixer.d_k / d_model, "expand_v": mixer.n_heads * mixer.d_v / d_model}
    return "delta_net", common | features | ratios


def attention_values(mixer: Attention, d_model: int) -> dict[str, Any]:
    need(mixer, "FLA", d_head=d_model // mixer.n_heads, rope_dims=None, qk_norm="none", gate=False, post_norm=False)
    if mixer.rope_theta is None:
        raise ValueError("Attention: rope_theta is None, FLA's attention has positions")
    heads = {"num_heads": mixer.n_heads, "num_kv_heads": mixer.H_kv}
    return heads | {"window_size": mixer.window, "rope_theta": mixer.rope_theta}


def attention_specs(layers: list[Mixer], d_model: int, old: bool) -> dict[str, Any] | list[dict[str, Any]]:
    """`attn` of a hybrid: one dict of FLA's for each kind of attention."""
    kinds = list(dict.fromkeys(mixer for mixer in layers if isinstance(mixer, Attention)))
    specs = [
        {"layers": [i for i, mixer in enumerate(layers) if mixer == kind], **attention_values(kind, d_model)}
        for kind in kinds
    ]
    if old and (len(specs) > 1 or specs[0]["rope_theta"] != 10000.0):
        raise ValueError("the attention has several kinds or another rope_theta, which FLA had not in December 2024")
    return specs[0] if len(specs) == 1 else specs


def check_old(model_type: str, values: dict[str, Any]) -> None:
    """What FLA did not have in December 2024."""
    if model_type in ("mamba", "samba", "linear_attn", "gated_deltaproduct"):
        raise ValueError(f"{model_type} is written as FLA has it now only, not as in December 2024")
    newer = [name for name in ("allow_neg_eigval", "num_v_heads") if values.get(name)]
    newer += ["use_short_conv=False"] if values.get("use_short_conv") is False else []
    if model_type == "gated_deltanet" and values["expand_v"] != int(values["expand_v"]):
        newer.append("a broken expand_v")
    if newer:
        raise ValueError(f"the model needs {', '.join(newer)}, which FLA had not in December 2024")
    values.pop("allow_neg_eigval", None)
    values.pop("num_v_heads", None)
    if model_type == "gated_deltanet":
        values["expand_v"] = int(values["expand_v"])
