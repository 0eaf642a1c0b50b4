"""Mixers and models with the weights of transformers' own, which somebody else wrote."""

import pytest
import torch
from budget import relative_error

from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba, Mamba2
from gated_deltanet.models import CausalLM, ModelConfig

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

D_MODEL, L = 28, 70


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def outputs_and_grads(mixer, x):
    x = x.clone().requires_grad_()
    y = mixer(x)
    y = y[0] if isinstance(y, tuple) else y
    y.square().sum().backward()
    return y.detach(), x.grad


def assert_same(mixer, theirs):
    x = torch.randn(2, L, D_MODEL)
    for got, expected in zip(outputs_and_grads(mixer, x), outputs_and_grads(theirs, x), strict=True):
        assert relative_error(got, expected) < 3e-6


def attention_of(theirs, rotary=None):
    """As a function of x alone, its biggest mask and positions from 0 given."""
    mask = torch.full((L, L), -torch.inf).triu(1)[None, None]
    turned = None if rotary is None else rotary(torch.empty(2, L, 1), torch.arange(L).expand(3, 2, L))
    return lambda x: theirs(x, position_embeddings=turned, attention_mask=mask)


def test_gated_attention_is_that_of_qwen3_5():
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Attention, Qwen3_5TextRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    config = transformers.Qwen3_5TextConfig(hidden_size=D_MODEL, **heads, rope_parameters=rope, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    theirs = Qwen3_5Attention(config, layer_idx=3)
    for norm in (theirs.q_norm, theirs.k_norm):
        torch.nn.init.normal_(norm.weight, std=0.3)
    mixer = Attention(4, 12, 2, rope_theta=500.0, rope_dims=6, qk_norm="head", gate=True).build(D_MODEL)
    w = theirs.state_dict()
    q, gate = w["q_proj.weight"].view(4, 24, D_MODEL).chunk(2, 1)
    names = {"q_proj.weight": q.flatten(0, 1), "gate_proj.weight": gate.flatten(0, 1)}
    names |= {"k_proj.weight": w["k_proj.weight"], "v_proj.weight": w["v_proj.weight"]}
    names |= {"q_norm.weight": 1 + w["q_norm.weight"], "k_norm.weight": 1 + w["k_norm.weight"]}
    mixer.load_state_dict(names | {"out_proj.weight": w["o_proj.weight"]})
    assert_same(mixer, attention_of(theirs, Qwen3_5TextRotaryEmbedding(config)))


def test_attention_without_positions_and_with_norms_of_all_heads_is_that_of_olmo_hybrid():
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridAttention

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    config = transformers.OlmoHybridConfig(hidden_size=D_MODEL, **heads, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    theirs = OlmoHybridAttention(config, layer_idx=3)
    for norm in (theirs.q_norm, theirs.k_norm):
        torch.nn.init.normal_(norm.weight)
    mixer = Attention(4, 6, 2, rope_theta=None, qk_norm="all").build(D_MODEL)
    mixer.load_state_dict({name.replace("o_proj", "out_proj"): x for name, x in theirs.state_dict().items()})
    assert_same(mixer, attention_of(theirs))


@pytest.mark.parametrize("beta_max", [1, 2])
def test_gated_deltanet_is_that_of_olmo_hybrid(beta_max):
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

    config = transformers.OlmoHybridConfig(
        hidden_size=D_MODEL,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=5,
        linear_allow_neg_eigval=beta_max == 2,
    )
    theirs = OlmoHybridGatedDeltaNet(config, layer_idx=0)
    mixer = GatedDeltaNet(2, 8, 12, n_v_heads=6, conv_size=5, beta_max=beta_max).build(D_MODEL)
    w = theirs.state_dict()
    q_conv, k_conv, v_conv = w["conv1d.weight"].squeeze(1).split([16, 16, 72])
    names = {f"{x}_proj.weight": w[f"{x}_proj.weight"] for x in "qkvab"}
    names |= {"gate_proj.weight": w["g_proj.weight"], "out_proj.weight": w["o_proj.weight"]}
    names |= {"q_conv.weight": q_conv, "k_conv.weight": k_conv, "v_conv.weight": v_conv}
    names |= {"decay.A_log": w["A_log"], "decay.dt_bias": w["dt_bias"], "out_norm.weight": w["o_norm.weight"]}
    mixer.load_state_dict(names)
    assert_same(mixer, theirs)


@pytest.mark.parametrize("n_groups", [1, 2])
def test_mamba2_is_that_of_transformers(n_groups):
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = transformers.Mamba2Config(
        hidden_size=D_MODEL,
        num_heads=4,
        head_dim=14,
        state_size=10,
        n_groups=n_groups,
        conv_kernel=3,
        chunk_size=16,
        num_hidden_layers=1,
        layer_norm_epsilon=1e-5,
    )
    theirs = Mamba2Mixer(config, layer_idx=0)
    if n_groups > 1 and not hasattr(theirs.norm, "group_size"):
        pytest.skip("transformers before 5.23 takes one norm over all groups, unlike Mamba2's authors")
    torch.nn.init.normal_(theirs.D)
    mixer = Mamba2(4, 10, 14, n_groups=n_groups, conv_size=3).build(D_MODEL)
    w = theirs.state_dict()
    names = {"in_proj.weight": w["in_proj.weight"], "out_proj.weight": w["out_proj.weight"], "D": w["D"]}
    names |= {"conv.weight": w["conv1d.weight"].squeeze(1), "conv.bias": w["conv1d.bias"]}
    names |= {"decay.A_log": w["A_log"], "decay.dt_bias": w["dt_bias"], "out_norm.weight": w["norm.weight"]}
    mixer.load_state_dict(names)
    assert_same(mixer, theirs)


def test_mamba_is_that_of_transformers():
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = transformers.MambaConfig(
        hidden_size=D_MODEL, state_size=6, expand=3, time_step_rank=5, conv_kernel=3, num_hidden_layers=1
    )
    theirs = MambaMixer(config, layer_idx=0)
    torch.nn.init.normal_(theirs.D)
    mixer = Mamba(d_inner=3 * D_MODEL, dt_rank=5, d_state=6, conv_size=3).build(D_MODEL)
    w = theirs.state_dict()
    names = {name: w[name] for name in ("in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight", "D")}
    names |= {"conv.weight": w["conv1d.weight"].squeeze(1), "conv.bias": w["conv1d.bias"]}
    names |= {"decay.A_log": w["A_log"], "decay.dt_bias": w["dt_proj.bias"]}
    mixer.load_state_dict(names)
    assert_same(mixer, theirs)


@pytest.mark.parametrize("window", [None, 9])
def test_transformer_is_llama_and_with_a_window_mistral(window):
    sizes = {"hidden_size": D_MODEL, "intermediate_size": 36, "num_hidden_layers": 2, "vocab_size": 50}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-5}
    if window is None:
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attn_implementation="eager"))
    else:
        config = transformers.MistralConfig(**sizes, sliding_window=window, attn_implementation="eager")
        theirs = transformers.MistralForCausalLM(config)
    mixer = Attention(n_heads=4, d_head=10, n_kv_heads=2, window=window)
    model = CausalLM(ModelConfig(D_MODEL, 2, (mixer,), 36, 50, tied=False))
    w = theirs.state_dict()
    names = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    names["head.weight"] = "lm_head.weight"
    for layer in ("layers.0.", "layers.1."):
        names |= {f"{layer}mixer.{x}_proj.weight": f"model.{layer}self_attn.{x}_proj.weight" for x in "qkv"}
        names[f"{layer}mixer.out_proj.weight"] = f"model.{layer}self_attn.o_proj.weight"
        names[f"{layer}mixer_norm.weight"] = f"model.{layer}input_layernorm.weight"
        names[f"{layer}mlp_norm.weight"] = f"model.{layer}post_attention_layernorm.weight"
        names |= {f"{layer}mlp.{x}_proj.weight": f"model.{layer}mlp.{x}_proj.weight" for x in ("gate", "up")}
        names[f"{layer}mlp.out_proj.weight"] = f"model.{layer}mlp.down_proj.weight"
    model.load_state_dict({ours: w[name] for ours, name in names.items()})
    tokens = torch.randint(50, (2, L))
    with torch.no_grad():
        assert relative_error(model(tokens)[0], theirs(tokens).logits) < 3e-6
