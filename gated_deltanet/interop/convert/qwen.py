"""Qwen3.5's text model in transformers: gated delta layers and gated attention. Names, config.json both ways."""

from typing import Any

from gated_deltanet.layers import Mixer
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.models.config import ModelConfig

from .accounting import Shapes, Values, count_layers, need, share, size
from .joints import Joint, singles
from .llama import HEAD, KV, LAYERS, MLP, NORMS, TOP, common, model_of, rope_of

WHOSE = "transformers' qwen3_5"
GDN = {
    "mixer.a_proj.weight": "linear_attn.in_proj_a.weight",
    "mixer.b_proj.weight": "linear_attn.in_proj_b.weight",
    "mixer.gate_proj.weight": "linear_attn.in_proj_z.weight",
    "mixer.decay.A_log": "linear_attn.A_log",
    "mixer.decay.dt_bias": "linear_attn.dt_bias",
    "mixer.out_norm.weight": "linear_attn.norm.weight",
    "mixer.out_proj.weight": "linear_attn.out_proj.weight",
}
ATTENTION = KV | {"mixer.out_proj.weight": "self_attn.o_proj.weight"}
QK_NORMS = {f"mixer.{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"}
NO_ATTENTION = Attention(n_heads=1, d_head=2)  # what a model without attention says of it
SECTIONS = 3  # of positions: time, height, width, which are one in text


def joints(config: ModelConfig) -> list[Joint]:
    """All norms but those of the rule's outputs multiply by 1 + weight."""
    embedding, norm = TOP.items()
    found = [*singles(dict([embedding]) | HEAD), *singles(dict([norm]), shift=1.0)]
    for layer in range(config.n_layers):
        ours, theirs, mixer = f"layers.{layer}.", f"{LAYERS}{layer}.", config.mixer(layer)
        found += singles(MLP, ours=ours, theirs=theirs) + singles(NORMS, ours=ours, theirs=theirs, shift=1.0)
        if isinstance(mixer, Attention):
            found += singles(ATTENTION, ours=ours, theirs=theirs)
            found += singles(QK_NORMS, ours=ours, theirs=theirs, shift=1.0)
            both = f"{ours}mixer.q_proj.weight", f"{ours}mixer.gate_proj.weight"
            found.append(Joint((f"{theirs}self_attn.q_proj.weight",), both, groups=mixer.n_heads))
        else:
            found += singles(GDN, ours=ours, theirs=theirs)
            for there, here in (("in_proj_qkv", "proj"), ("conv1d", "conv")):
                qkv = tuple(f"{ours}mixer.{x}_{here}.weight" for x in "qkv")
                found.append(Joint((f"{theirs}linear_attn.{there}.weight",), qkv))
    return found


def infer(values: Values, shapes: Shapes) -> ModelConfig:
    """Key heads, positions and eps are config.json's, the rest is what the tensors tell."""
    if values.get("attn_output_gate", True) is not True:
        raise ValueError("attn_output_gate is false, expected true")
    mixers = [mixer_of(values, shapes, f"{LAYERS}{i}") for i in range(count_layers(shapes, LAYERS))]
    return model_of(values, shapes, mixers)


def mixer_of(values: Values, shapes: Shapes, at: str) -> Mixer:
    if f"{at}.linear_attn.A_log" in shapes:
        return gdn_of(values, shapes, f"{at}.linear_attn")
    at = f"{at}.self_attn"
    (d_head,) = size(shapes, f"{at}.q_norm.weight", 1)
    n_heads = share(size(shapes, f"{at}.q_proj.weight", 2)[0], 2 * d_head, f"{at}.q_proj.weight", "two heads' width")
    n_kv_heads = share(size(shapes, f"{at}.k_proj.weight", 2)[0], d_head, f"{at}.k_proj.weight", "the head's width")
    theta, part = rope_of(values, default=0.25)
    dims = None if part is None else int(d_head * part)
    options = {"rope_theta": theta, "rope_dims": dims, "qk_norm": "head", "gate": True}
    return Attention(n_heads, d_head, None if n_kv_heads == n_heads else n_kv_heads, **options)


def gdn_of(values: Values, shapes: Shapes, at: str) -> GatedDeltaNet:
    (H_v,), (d_v,) = size(shapes, f"{at}.A_log", 1), size(shapes, f"{at}.norm.weight", 1)
    rows, _, conv_size = size(shapes, f"{at}.conv1d.weight", 3)
    n_heads = values.get("linear_num_key_heads", 16)
    d_k = share(rows - H_v * d_v, 2 * n_heads, f"{at}.conv1d.weight without values", "2 · linear_num_key_heads")
    return GatedDeltaNet(n_heads, d_k, d_v, None if n_heads == H_v else H_v, conv_size)


def describe(config: ModelConfig) -> dict[str, Any]:
    """config.json, or an error that says what cannot be said in it."""
    layers = [config.mixer(layer) for layer in range(config.n_layers)]
    kinds = {"full_attention": Attention, "linear_attention": GatedDeltaNet}
    found = {name: {mixer for mixer in layers if isinstance(mixer, kind)} for name, kind in kinds.items()}
    if any(len(mixers) > 1 for mixers in found.values()):
        raise ValueError(f"the model has several kinds of a mixer, {WHOSE} has one each")
    (gdn,) = found["linear_attention"]
    attention = next(iter(found["full_attention"]), NO_ATTENTION)
    assert isinstance(gdn, GatedDeltaNet)
    assert isinstance(attention, Attention)
    values = common(config, attention) | gdn_values(gdn, WHOSE)
    need(gdn, WHOSE, beta_max=1, out_eps=None)
    values |= {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "attention_bias": False}
    values["layer_types"] = [next(name for name, kind in kinds.items() if isinstance(x, kind)) for x in layers]
    if attention is NO_ATTENTION:
        return values | {"use_cache": False}  # transformers' cache counts tokens in attention layers only
    need(attention, WHOSE, window=None, qk_norm="head", gate=True, post_norm=False)
    if attention.rope_theta is None:
        raise ValueError(f"Attention: rope_theta is None, {WHOSE} has positions")
    return values | {"rope_parameters": rope_values(attention)}


def gdn_values(gdn: GatedDeltaNet, whose: str) -> dict[str, Any]:
    need(gdn, whose, decay=True, gate=True, out_norm=True, feature_map="silu", qk_norm="l2", n_h=1, beta_bias=False)
    if gdn.conv_size is None:
        raise ValueError(f"GatedDeltaNet: conv_size is None, {whose} has convolutions")
    return {
        "linear_num_key_heads": gdn.n_heads,
        "linear_num_value_heads": gdn.H_v,
        "linear_key_head_dim": gdn.d_k,
        "linear_value_head_dim": gdn.d_v,
        "linear_conv_kernel_dim": gdn.conv_size,
    }


def rope_values(attention: Attention) -> dict[str, Any]:
    dims = attention.rope_dims or attention.d_head
    return {
        "rope_type": "default",
        "rope_theta": attention.rope_theta,
        "partial_rotary_factor": dims / attention.d_head,
        "mrope_section": sections(dims),
        "mrope_interleaved": True,
    }


def sections(dims: int) -> list[int]:
    """The pairs of numbers of a head that are turned by time, height and width."""
    pairs = dims // 2
    return [(pairs + SECTIONS - 1 - i) // SECTIONS for i in range(SECTIONS)]
