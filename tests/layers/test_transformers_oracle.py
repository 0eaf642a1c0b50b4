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
