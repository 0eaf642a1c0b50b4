"""Llama and Mistral, whose models are one in transformers but for Mistral's window: names, config.json both ways."""

from collections.abc import Sequence
from typing import Any

from gated_deltanet.files import shaped
from gated_deltanet.layers import Mixer
from gated_deltanet.layers.attention import Attention
from gated_deltanet.models.config import ModelConfig

from .accounting import Shapes, Values, count_layers, need, share, shortest, size
from .joints import Joint, singles

POSITIONS = 32768  # a hint for tools: our models have no limit
LAYERS = "model.layers."
TOP = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
HEAD = {"head.weight": "lm_head.weight"}
NORMS = {"mixer_norm.weight": "input_layernorm.weight", "mlp_norm.weight": "post_attention_layernorm.weight"}
MLP = {
    "mlp.gate_proj.weight": "mlp.gate_proj.weight",
    "mlp.up_proj.weight": "mlp.up_proj.weight",
    "mlp.out_proj.weight": "mlp.down_proj.weight",
}
KV = {f"mixer.{x}_proj.weight": f"self_attn.{x}_proj.weight" for x in "kv"}
ATTENTION = {
    "mixer.q_proj.weight": "self_attn.q_proj.weight",
    **KV,
    "mixer.out_proj.weight": "self_attn.o_proj.weight",
}


def joints(config: ModelConfig) -> list[Joint]:
    found = singles(TOP | HEAD)
    for layer in range(config.n_layers):
        found += singles(NORMS | ATTENTION | MLP, ours=f"layers.{layer}.", theirs=f"{LAYERS}{layer}.")
    return found


def infer(values: Values, shapes: Shapes) -> ModelConfig:
    """Numbers of heads, positions, window and eps are config.json's, the rest is what the tensors tell."""
    theta, dims = rope_of(values)
    if dims is not None or theta is None:
        raise ValueError("rope_parameters turn a part of each head or nothing, expected all of it")
    window = shaped(values.get("sliding_window"), int | None, "sliding_window")
    mixers = []
    for layer in range(count_layers(shapes, LAYERS)):
        heads = heads_of(values, shapes, f"{LAYERS}{layer}.self_attn")
        mixers.append(Attention(*heads, window=window, rope_theta=theta))
    return model_of(values, shapes, mixers)


def describe(config: ModelConfig) -> dict[str, Any]:
    """config.json, or an error that says what cannot be said in it."""
    if len(set(config.mixers)) > 1:
        raise ValueError("the model has several kinds of attention, transformers' llama and mistral have one")
    (mixer,) = set(config.mixers)
    assert isinstance(mixer, Attention)
    window = mixer.window is not None
    whose = f"transformers' {'mistral' if window else 'llama'}"
    need(mixer, whose, rope_dims=None, qk_norm="none", gate=False, post_norm=False)
    if mixer.rope_theta is None:
        raise ValueError(f"Attention: rope_theta is None, {whose} has positions")
    values = {"model_type": "mistral" if window else "llama", "rope_theta": mixer.rope_theta}
    values |= {"architectures": ["MistralForCausalLM" if window else "LlamaForCausalLM"]}
    values |= {"sliding_window": mixer.window} if window else {"attention_bias": False, "mlp_bias": False}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": mixer.rope_theta}}
    return common(config, mixer) | values | rope


def common(config: ModelConfig, attention: Attention) -> dict[str, Any]:
    """What config.json of most models of transformers says."""
    if not config.d_ff:
        raise ValueError("d_ff is 0, but transformers' model has an MLP in every layer")
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.H_kv,
        "head_dim": attention.d_head,
    }


def model_of(values: Values, shapes: Shapes, mixers: Sequence[Mixer]) -> ModelConfig:
    if values.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {values['hidden_act']!r}, expected 'silu'")
    vocab_size, d_model = size(shapes, TOP["embedding.weight"], 2)
    return ModelConfig(
        d_model=d_model,
        n_layers=len(mixers),
        mixers=shortest(mixers),
        d_ff=size(shapes, f"{LAYERS}0.mlp.down_proj.weight", 2)[1],
        vocab_size=vocab_size,
        tied=shaped(values.get("tie_word_embeddings", False), bool, "tie_word_embeddings"),
        norm_eps=shaped(values.get("rms_norm_eps", 1e-6), float, "rms_norm_eps"),
    )


def heads_of(values: Values, shapes: Shapes, at: str) -> tuple[int, int, int | None]:
    """n_heads, d_head, n_kv_heads where the number of heads is told by config.json only."""
    n_heads = values.get("num_attention_heads")
    d_head = share(size(shapes, f"{at}.q_proj.weight", 2)[0], n_heads, f"{at}.q_proj.weight", "num_attention_heads")
    n_kv_heads = share(size(shapes, f"{at}.k_proj.weight", 2)[0], d_head, f"{at}.k_proj.weight", "the head's width")
    assert isinstance(n_heads, int)
    return n_heads, d_head, None if n_kv_heads == n_heads else n_kv_heads


def rope_of(values: Values, default: float = 1.0) -> tuple[float | None, float | None]:
    """rope_theta, and which share of each head is turned, None if all of it: as transformers 4 and 5 write them."""
    given = shaped(values.get("rope_parameters") or {}, dict[str, Any], "rope_parameters")
    scaling = shaped(values.get("rope_scaling") or {}, dict[str, Any], "rope_scaling")
    kinds = {each.get("rope_type", each.get("type", "default")) for each in (given, scaling)}
    if others := sorted(str(kind) for kind in kinds - {"default"}):
        raise ValueError(f"rope_type is {others[0]!r}, expected 'default'")
    values = {"rope_theta": 10000.0, "partial_rotary_factor": default, **values, **given}
    theta = shaped(values["rope_theta"], float | int | None, "rope_theta")
    part = shaped(values["partial_rotary_factor"], float | int, "partial_rotary_factor")
    return None if theta is None else float(theta), None if part == 1 else part
