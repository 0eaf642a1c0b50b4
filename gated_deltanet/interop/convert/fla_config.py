"""A model of flash-linear-attention (FLA) as our ModelConfig.

What the shapes of the tensors tell is taken from them; FLA's config is asked for the rest only: numbers of heads where
no tensor tells them, windows, eps, switches without tensors.
"""

from typing import Any

from gated_deltanet.files import shaped
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

from .accounting import Shapes, Values, count_layers, share, shortest, size

TYPES = {
    "gated_deltanet": "GatedDeltaNetForCausalLM",
    "delta_net": "DeltaNetForCausalLM",
    "retnet": "RetNetForCausalLM",
    "hgrn2": "HGRN2ForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mamba": "MambaForCausalLM",
    "samba": "SambaForCausalLM",
    "linear_attn": "LinearAttentionForCausalLM",
    "gated_deltaproduct": "GatedDeltaProductForCausalLM",
    "transformer": "TransformerForCausalLM",
}
BACKBONES = ("mamba2", "mamba", "samba")  # whose tensors are called backbone.…
WITHOUT_MLP = ("mamba2", "mamba")
SILU = ("swish", "silu")
FEATURES = {"silu": "silu", "relu": "relu", "elu": "elu+1"}
ONLY = {  # values that our models have, or do as if they had; another one is an error
    "hidden_act": SILU,
    "output_gate_activation": SILU,
    "attnres_block_size": (None,),
    "feature_map": (None,),
    "use_beta": (True,),
    "use_output_norm": (True,),
    "use_output_gate": (True,),
    "use_lower_bound": (True,),
    "rmsnorm": (True,),
    "norm_before_gate": (False,),
    "dt_limit": ([0.0, float("inf")],),
    "norm_q": (False,),
    "norm_k": (False,),
    "norm_feature_map": (False,),
    "elementwise_affine": (True,),
    "qk_activation": tuple(FEATURES),
}
FREE = {"linear_attn": ("feature_map",), "gated_deltaproduct": ("use_output_gate",)}  # which these do have


def infer(values: Values, shapes: Shapes) -> ModelConfig:
    """values: config.json. shapes: of FLA's tensors."""
    model_type = values.get("model_type")
    if model_type == "gdn":
        raise ValueError("this is a model of ours already, expected one of FLA")
    if model_type not in TYPES:
        raise ValueError(f"model_type is {model_type!r}, expected one of {', '.join(TYPES)}")
    for name, allowed in ONLY.items():
        if name in values and values[name] not in allowed and name not in FREE.get(model_type, ()):
            raise ValueError(f"{name} is {values[name]!r}, expected {' or '.join(map(repr, allowed))}")
    prefix = "backbone" if model_type in BACKBONES else "model"
    vocab_size, d_model = size(shapes, f"{prefix}.embeddings.weight", 2)
    n_layers = count_layers(shapes, f"{prefix}.layers.")
    mixers = [mixer_of(values, shapes, f"{prefix}.layers.{layer}", layer) for layer in range(n_layers)]
    return ModelConfig(
        d_model=d_model,
        n_layers=n_layers,
        mixers=shortest(mixers),
        d_ff=0 if model_type in WITHOUT_MLP else size(shapes, f"{prefix}.layers.0.mlp.down_proj.weight", 2)[1],
        vocab_size=vocab_size,
        tied=bool(values.get("tie_word_embeddings", False)),
        norm_eps=shaped(values.get("norm_eps", 1e-5 if model_type in BACKBONES else 1e-6), float, "norm_eps"),
    )


def mixer_of(values: Values, shapes: Shapes, at: str, layer: int) -> Mixer:
    """By the tensors of its layer."""
    if f"{at}.mixer.x_proj.weight" in shapes:
        return mamba_of(shapes, f"{at}.mixer")
    if f"{at}.mixer.A_log" in shapes:
        return mamba2_of(values, shapes, f"{at}.mixer")
    if f"{at}.mixer.q_proj.weight" in shapes:
        return attention_of(values, shapes, f"{at}.mixer", layer)
    if f"{at}.attn.norm.weight" in shapes and values["model_type"] == "linear_attn":
        return linear_attention_of(values, shapes, f"{at}.attn")
    if f"{at}.attn.b_proj.weight" in shapes and values["model_type"] == "gated_deltaproduct":
        return delta_product_of(values, shapes, f"{at}.attn")
    if f"{at}.attn.f_proj.weight" in shapes:
        return hgrn2_of(values, shapes, f"{at}.attn")
    if f"{at}.attn.g_norm_swish_gate.weight" in shapes:
        return retnet_of(shapes, f"{at}.attn")
    if f"{at}.attn.b_proj.weight" in shapes:
        return delta_of(values, shapes, f"{at}.attn")
    return attention_of(values, shapes, f"{at}.attn", layer)


def delta_of(values: Values, shapes: Shapes, at: str) -> Mixer:
    """A gate and a decay are there if their tensors are."""
    (H_v, _), (d_v,) = size(shapes, f"{at}.b_proj.weight", 2), size(shapes, f"{at}.o_norm.weight", 1)
    decay, gate = f"{at}.A_log" in shapes, f"{at}.g_proj.weight" in shapes
    grouped = decay and values.get("num_v_heads") not in (None, values.get("num_heads"))
    n_heads = values.get("num_heads") if grouped else H_v  # which no tensor tells
    d_k = share(size(shapes, f"{at}.q_proj.weight", 2)[0], n_heads, f"{at}.q_proj.weight", "num_heads")
    conv = f"{at}.q_conv1d.weight"
    conv_size = size(shapes, conv, 3)[2] if conv in shapes else None
    beta_max = 2.0 if values.get("allow_neg_eigval") else 1.0
    features, norm = FEATURES[values.get("qk_activation", "silu")], values.get("qk_norm", "l2")
    if decay:
        return GatedDeltaNet(n_heads or 1, d_k, d_v, H_v if grouped else None, conv_size, gate=gate, beta_max=beta_max)
    if norm != "l2" and (norm != "sum" or features == "silu"):
        raise ValueError(f"qk_norm is {norm!r} with qk_activation {features!r}, expected 'l2', or 'sum' of what is ≥ 0")
    if not gate and features == "silu" and norm == "l2":
        return DeltaNet(H_v, d_k, d_v, conv_size, beta_max)
    options = {"feature_map": features, "qk_norm": "l2" if norm == "l2" else "l1", "beta_max": beta_max}
    return GatedDeltaNet(H_v, d_k, d_v, None, conv_size, decay=False, gate=gate, **options)


def delta_product_of(values: Values, shapes: Shapes, at: str) -> GatedDeltaNet:
    """How many steps a token has, the tensors tell."""
    (d_v,), (keys, _) = size(shapes, f"{at}.o_norm.weight", 1), size(shapes, f"{at}.q_proj.weight", 2)
    n_heads = share(size(shapes, f"{at}.o_proj.weight", 2)[1], d_v, f"{at}.o_proj.weight", "d_v")
    n_h = share(size(shapes, f"{at}.b_proj.weight", 2)[0], n_heads, f"{at}.b_proj.weight", "the heads")
    conv = f"{at}.q_conv1d.weight"
    options = {"decay": f"{at}.A_log" in shapes, "gate": f"{at}.g_proj.weight" in shapes, "n_h": n_h}
    options |= {"conv_size": size(shapes, conv, 3)[2] if conv in shapes else None}
    options |= {"beta_max": 2.0 if values.get("allow_neg_eigval") else 1.0}
    return GatedDeltaNet(n_heads, share(keys, n_heads, f"{at}.q_proj.weight", "the heads"), d_v, **options)


def linear_attention_of(values: Values, shapes: Shapes, at: str) -> LinearAttention:
    (d_v,), (keys, _) = size(shapes, f"{at}.norm.weight", 1), size(shapes, f"{at}.q_proj.weight", 2)
    n_heads = share(size(shapes, f"{at}.o_proj.weight", 2)[1], d_v, f"{at}.o_proj.weight", "d_v")
    features = values.get("feature_map", "elementwise_product")
    if features not in ("elu", "relu"):
        raise ValueError(f"feature_map is {features!r}, expected 'elu' or 'relu'")
    return LinearAttention(n_heads, share(keys, n_heads, f"{at}.q_proj.weight", "the heads"), d_v, FEATURES[features])


def mamba_of(shapes: Shapes, at: str) -> Mamba:
    inner, d_state = size(shapes, f"{at}.A_log", 2)
    conv_size = size(shapes, f"{at}.conv1d.weight", 3)[2]
    return Mamba(inner, size(shapes, f"{at}.dt_proj.weight", 2)[1], d_state, conv_size)


def retnet_of(shapes: Shapes, at: str) -> RetNet:
    (d_v,), (keys, _) = size(shapes, f"{at}.g_norm_swish_gate.weight", 1), size(shapes, f"{at}.q_proj.weight", 2)
    n_heads = share(size(shapes, f"{at}.g_proj.weight", 2)[0], d_v, f"{at}.g_proj.weight", "d_v")
    return RetNet(n_heads, share(keys, n_heads, f"{at}.q_proj.weight", "n_heads"), d_v)


def hgrn2_of(values: Values, shapes: Shapes, at: str) -> HGRN2:
    keys, d_model = size(shapes, f"{at}.f_proj.weight", 2)
    ratio = values.get("expand_ratio", 128)
    n_heads = values.get("num_heads") if ratio is None else share(keys, ratio, f"{at}.f_proj.weight", "expand_ratio")
    d_k = share(keys, n_heads, f"{at}.f_proj.weight", "num_heads")
    return HGRN2(n_heads or 1, d_k, share(d_model, n_heads, f"{at}.i_proj.weight", "num_heads"))


def mamba2_of(values: Values, shapes: Shapes, at: str) -> Mamba2:
    (n_heads,), (_, inner) = size(shapes, f"{at}.A_log", 1), size(shapes, f"{at}.out_proj.weight", 2)
    channels, _, conv_size = size(shapes, f"{at}.conv1d.weight", 3)
    d_k = shaped(values.get("state_size", 128), int, "state_size")
    n_groups = share(channels - inner, 2 * d_k, f"{at}.conv1d.weight without x", "2 · state_size")
    return Mamba2(n_heads, d_k, share(inner, n_heads, f"{at}.out_proj.weight", "heads"), n_groups, conv_size)


def attention_of(values: Values, shapes: Shapes, at: str, layer: int) -> Attention:
    """A Transformer's, or of a hybrid, which has a dict in `attn`, or several."""
    given = values
    if values["model_type"] != "transformer":
        specs = values.get("attn") or []
        specs = shaped([specs] if isinstance(specs, dict) else specs, list[dict[str, Any]], "attn")
        found = [spec for spec in specs if layer in shaped(spec.get("layers"), list[int], "attn.layers")]
        if not found:
            raise ValueError(f"{at} is no {values['model_type']}, and no `attn` of config.json names layer {layer}")
        given = found[0]
    n_heads = given.get("num_heads")
    d_head = share(size(shapes, f"{at}.q_proj.weight", 2)[0], n_heads, f"{at}.q_proj.weight", "num_heads")
    n_kv_heads = share(size(shapes, f"{at}.k_proj.weight", 2)[0], d_head, f"{at}.k_proj.weight", "the head's width")
    options = {
        "window": given.get("window_size"),
        "rope_theta": shaped(given.get("rope_theta", 10000.0), float, "rope_theta"),
    }
    return Attention(n_heads or 1, d_head, None if n_kv_heads == n_heads else n_kv_heads, **options)
