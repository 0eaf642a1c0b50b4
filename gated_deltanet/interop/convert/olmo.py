"""OLMo-Hybrid in transformers: gated delta layers, and attention whose norms come after. Names, config.json both ways.

A checkpoint calls the norms otherwise than the model does, and holds three convolutions where the model has one;
transformers 5.23 saves these cut in three equal parts, wherever queries, keys and values end.
"""

from typing import Any

from gated_deltanet.files import shaped
from gated_deltanet.layers import Mixer
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.models.config import ModelConfig

from .accounting import Shapes, Values, count_layers, need, share, size
from .joints import Joint, singles
from .llama import ATTENTION, HEAD, LAYERS, MLP, NORMS, TOP, common, heads_of, model_of, rope_of
from .qwen import gdn_values

WHOSE = "transformers' olmo_hybrid"
OUT_EPS = 1e-5  # of the norm of the rule's outputs, whatever rms_norm_eps is
RENAMED = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
GDN = {f"mixer.{x}_proj.weight": f"linear_attn.{x}_proj.weight" for x in "qkvab"}
GDN |= {
    "mixer.gate_proj.weight": "linear_attn.g_proj.weight",
    "mixer.decay.A_log": "linear_attn.A_log",
    "mixer.decay.dt_bias": "linear_attn.dt_bias",
    "mixer.out_norm.weight": "linear_attn.o_norm.weight",
    "mixer.out_proj.weight": "linear_attn.o_proj.weight",
}
NORMED = ATTENTION | {f"mixer.{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"}
NORMS_AFTER = {
    "mixer_norm.weight": "post_attention_layernorm.weight",
    "mlp_norm.weight": "post_feedforward_layernorm.weight",
}


def rename(name: str) -> str:
    """As the model calls it. name: in a file."""
    for there, here in RENAMED.items():
        name = name.replace(f".{there}.", f".{here}.")
    return name


def joints(config: ModelConfig) -> list[Joint]:
    found = singles(TOP | HEAD)
    for layer in range(config.n_layers):
        ours, theirs = f"layers.{layer}.", f"{LAYERS}{layer}."
        if isinstance(config.mixer(layer), Attention):
            found += singles(NORMED | NORMS_AFTER | MLP, ours=ours, theirs=theirs)
            continue
        found += singles(GDN | NORMS | MLP, ours=ours, theirs=theirs)
        convs = tuple(f"{theirs}linear_attn.{x}_conv1d.weight" for x in "qkv")
        found.append(Joint(convs, tuple(f"{ours}mixer.{x}_conv.weight" for x in "qkv")))
    return found


def infer(values: Values, shapes: Shapes) -> ModelConfig:
    """Numbers of heads, positions, eps and the range of β are config.json's, the rest is what the tensors tell."""
    mixers = [mixer_of(values, shapes, f"{LAYERS}{i}") for i in range(count_layers(shapes, LAYERS))]
    return model_of(values, shapes, mixers)


def mixer_of(values: Values, shapes: Shapes, at: str) -> Mixer:
    if f"{at}.linear_attn.A_log" not in shapes:
        theta, part = rope_of(values)
        if part is not None:
            raise ValueError("rope_parameters turn a part of each head, expected all of it or nothing")
        heads = heads_of(values, shapes, f"{at}.self_attn")
        return Attention(*heads, rope_theta=theta, qk_norm="all", post_norm=True)
    at = f"{at}.linear_attn"
    (H_v,), (d_v,) = size(shapes, f"{at}.A_log", 1), size(shapes, f"{at}.o_norm.weight", 1)
    n_heads = values.get("linear_num_key_heads", H_v)
    d_k = share(size(shapes, f"{at}.q_proj.weight", 2)[0], n_heads, f"{at}.q_proj.weight", "linear_num_key_heads")
    conv_size = size(shapes, f"{at}.q_conv1d.weight", 3)[2]
    negative = shaped(values.get("linear_allow_neg_eigval", True), bool, "linear_allow_neg_eigval")
    H_v, beta_max = None if n_heads == H_v else H_v, 2.0 if negative else 1.0
    return GatedDeltaNet(n_heads, d_k, d_v, H_v, conv_size, beta_max=beta_max, out_eps=OUT_EPS)


def describe(config: ModelConfig) -> dict[str, Any]:
    """config.json, or an error that says what cannot be said in it."""
    layers = [config.mixer(layer) for layer in range(config.n_layers)]
    if len(set(layers)) != 2:
        raise ValueError(
            f"the model has {len(set(layers))} kinds of mixers, {WHOSE} has one GatedDeltaNet and one Attention"
        )
    (gdn,) = {mixer for mixer in layers if isinstance(mixer, GatedDeltaNet)}
    (attention,) = {mixer for mixer in layers if isinstance(mixer, Attention)}
    if gdn.beta_max not in (1, 2):
        raise ValueError(f"GatedDeltaNet: beta_max is {gdn.beta_max}, {WHOSE} has 1 and 2")
    if (gdn.out_eps or config.norm_eps) != OUT_EPS:
        raise ValueError(f"GatedDeltaNet: out_eps is {gdn.out_eps or config.norm_eps}, {WHOSE} has {OUT_EPS} only")
    need(attention, WHOSE, window=None, rope_dims=None, qk_norm="all", gate=False, post_norm=True)
    kinds = ["full_attention" if mixer == attention else "linear_attention" for mixer in layers]
    return (
        common(config, attention)
        | gdn_values(gdn, WHOSE)
        | {
            "model_type": "olmo_hybrid",
            "architectures": ["OlmoHybridForCausalLM"],
            "attention_bias": False,
            "layer_types": kinds,
            "linear_allow_neg_eigval": gdn.beta_max == 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": attention.rope_theta},
        }
    )
