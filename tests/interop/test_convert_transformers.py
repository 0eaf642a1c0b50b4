"""Checkpoints of transformers' own models as ours and back, on small random ones: equal logits, nothing left over."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from budget import relative_error
from safetensors.torch import load_file, save_file
from stock_models import stock

from gated_deltanet import CausalLM, Session, cli, get_preset, load, save
from gated_deltanet.interop.convert import from_any, from_transformers, to_transformers
from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba, Mamba2, RetNet
from gated_deltanet.models.config import ModelConfig

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

D, FF, VOCAB = 24, 20, 31
config_of = partial(ModelConfig, d_model=D, n_layers=3, d_ff=FF, vocab_size=VOCAB, tied=False, norm_eps=1e-6)
QWEN_ATTENTION = Attention(3, 12, 1, rope_theta=300.0, rope_dims=6, qk_norm="head", gate=True)
OLMO_ATTENTION = Attention(4, 8, 2, rope_theta=None, qk_norm="all", post_norm=True)
OLMO_GDN = GatedDeltaNet(2, 6, 10, n_v_heads=4, conv_size=3, beta_max=2.0, out_eps=1e-5)
MODELS = {
    "llama": config_of(mixers=(Attention(4, 8, n_kv_heads=2, rope_theta=500.0),), tied=True),
    "mistral": config_of(mixers=(Attention(3, 8, window=7),)),
    "mamba": config_of(mixers=(Mamba(48, 3, 5, conv_size=3),), d_ff=0, norm_eps=1e-5, tied=True),
    "mamba2": config_of(mixers=(Mamba2(6, 10, 8, n_groups=2),), d_ff=0, norm_eps=1e-5),
    "qwen3_5_text": config_of(mixers=(GatedDeltaNet(2, 6, 10, n_v_heads=4, conv_size=3), QWEN_ATTENTION), n_layers=5),
    "qwen3_5_text, all turned": config_of(
        mixers=(replace(QWEN_ATTENTION, rope_dims=None), GatedDeltaNet(3, 6, 6)), tied=True
    ),
    "qwen3_5_text, no attention": config_of(mixers=(GatedDeltaNet(3, 6, 12),)),
    "olmo_hybrid": config_of(mixers=(OLMO_GDN, OLMO_GDN, OLMO_ATTENTION)),
    "olmo_hybrid, positions": config_of(
        mixers=(replace(OLMO_ATTENTION, rope_theta=700.0), replace(OLMO_GDN, beta_max=1.0)), tied=True
    ),
}


def saved(config: ModelConfig, folder: Path) -> CausalLM:
    """A model whose parameters are all different, saved."""
    torch.manual_seed(0)
    model = CausalLM(config)
    for x in model.parameters():
        x.data += 0.3 * torch.randn_like(x)
    save(model, folder)
    return model


def stocks(name: str):
    """Of transformers, random."""
    if name in ("qwen3_5_text", "olmo_hybrid"):
        return stock(name, vocab_size=VOCAB)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": D, "num_hidden_layers": 2, "initializer_range": 0.3}
    if name == "mamba":
        config = transformers.MambaConfig(**sizes, state_size=5, expand=3, conv_kernel=3)
    elif name == "mamba2":
        config = transformers.Mamba2Config(**sizes, num_heads=6, head_dim=8, state_size=10, n_groups=2)
    else:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": FF}
        window = {"sliding_window": 9} if name == "mistral" else {}
        config = transformers.AutoConfig.for_model(name, **sizes, **heads, **window, rope_theta=900.0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for x in model.parameters():
        x.data += 0.1 * torch.randn_like(x)
    return model


TOKENS = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def assert_same_logits(model, theirs):
    assert relative_error(model(TOKENS)[0], theirs.eval()(TOKENS, use_cache=False).logits) < 1e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "mamba", "mamba2", "qwen3_5_text", "olmo_hybrid"])
def test_a_checkpoint_of_transformers_gives_its_logits(tmp_path, name):
    theirs = stocks(name)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    from_any(tmp_path / "theirs", tmp_path / "ours")
    assert_same_logits(load(tmp_path / "ours"), theirs)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_ours_is_read_by_transformers_with_no_tensor_left_over(tmp_path, name):
    model = saved(MODELS[name], tmp_path / "ours")
    to_transformers(tmp_path / "ours", tmp_path / "theirs", shard_bytes=9000)
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info.values())
    assert theirs.config.model_type == name.split(",")[0]
    assert_same_logits(model, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_the_same_model(tmp_path, name):
    model = saved(MODELS[name], tmp_path / "ours")
    to_transformers(tmp_path / "ours", tmp_path / "theirs", shard_bytes=9000)
    assert from_transformers(tmp_path / "theirs", tmp_path / "back") == model.config
    again = load(tmp_path / "back").state_dict()
    for tensor, x in model.state_dict().items():
        if name.startswith("qwen") and "norm" in tensor:  # through weight − 1
            assert torch.allclose(again[tensor], x, rtol=0, atol=2e-7), tensor
        else:
            assert torch.equal(again[tensor], x), tensor
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "ours", "theirs"]


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_5_text", "olmo_hybrid", "mamba2", "mistral"])
def test_a_session_goes_on_as_transformers_generates(tmp_path, name):
    theirs = stocks(name)
    theirs.save_pretrained(tmp_path / "theirs")
    from_any(tmp_path / "theirs", tmp_path / "ours")
    theirs.generation_config.eos_token_id = None
    mask = torch.ones_like(TOKENS[:1])
    expected = theirs.generate(TOKENS[:1], attention_mask=mask, max_new_tokens=12, do_sample=False)[0, 40:]
    session = Session(load(tmp_path / "ours"))
    logits, found = session.read(TOKENS[0]), []
    for _ in range(12):
        found.append(int(logits.argmax()))
        logits = session.read(torch.tensor(found[-1:]))
    assert found == expected.tolist()


def test_a_trained_preset_runs_in_transformers(tmp_path):
    torch.manual_seed(0)
    model = CausalLM(get_preset("gdn-qwen35-nano"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).backward()
    optimizer.step()
    save(model, tmp_path / "ours")
    to_transformers(tmp_path / "ours", tmp_path / "theirs")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert type(theirs).__name__ == "Qwen3_5ForCausalLM"
    assert_same_logits(model, theirs)


@torch.no_grad()
def test_norms_of_half_precision_keep_their_digits(tmp_path):
    theirs = stocks("qwen3_5_text").to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "theirs")
    from_any(tmp_path / "theirs", tmp_path / "ours")
    model, w = load(tmp_path / "ours"), theirs.state_dict()
    norm = model.get_parameter("layers.1.mixer_norm.weight")
    assert norm.dtype == torch.float32
    assert torch.equal(norm, 1 + w["model.layers.1.input_layernorm.weight"].float())
    assert model.get_parameter("layers.1.mixer.q_proj.weight").dtype == torch.bfloat16
    assert relative_error(model(TOKENS)[0].float(), theirs(TOKENS, use_cache=False).logits.float()) < 5e-2
    model.loss(TOKENS[:, :-1], TOKENS[:, 1:])


def test_pictures_and_guesses_of_qwen_are_left_out(tmp_path):
    theirs = stocks("qwen3_5_text")
    theirs.save_pretrained(tmp_path / "theirs")
    file, config = tmp_path / "theirs" / "model.safetensors", tmp_path / "theirs" / "config.json"
    tensors = {name.replace("model.", "model.language_model.", 1): x for name, x in load_file(file).items()}
    tensors |= {"model.visual.blocks.0.norm1.weight": torch.ones(3), "mtp.fc.weight": torch.ones(2, 4)}
    save_file(tensors, file)
    config.write_text(json.dumps({"model_type": "qwen3_5", "text_config": json.loads(config.read_text())}))
    from_any(tmp_path / "theirs", tmp_path / "ours")
    assert_same_logits(load(tmp_path / "ours"), theirs)


def changed(folder, name, x):
    """A value of config.json, or a tensor, is another one; None: the tensor is not there."""
    if "." not in name:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {name: x}))
        return
    tensors = load_file(folder / "model.safetensors")
    tensors = {key: value for key, value in tensors.items() if key != name} | ({} if x is None else {name: x})
    save_file(tensors, folder / "model.safetensors")


QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        (QKV, None, f"{QKV} is missing"),
        (QKV, torch.ones(5, 36), r"in_proj_qkv.weight is \[5, 36\], expected \[80, 36\]"),
        ("model.layers.1.self_attn.q_proj.bias", torch.ones(9), "q_proj.bias has no place in our model"),
        ("model.layers.1.self_attn.q_norm.weight", torch.ones(7), "q_proj.weight has 96 channels, expected a multiple"),
        ("lm_head.weight", None, "lm_head.weight is missing"),
        ("tie_word_embeddings", True, "lm_head.weight is not model.embed_tokens.weight"),
        ("hidden_act", "gelu", "hidden_act is 'gelu', expected 'silu'"),
        ("rope_parameters", {"rope_type": "yarn"}, "rope_type is 'yarn', expected 'default'"),
        ("rms_norm_eps", "small", "rms_norm_eps is 'small', expected a number"),
        ("model_type", "bert", "model_type is 'bert', expected one of gated_deltanet, .*llama"),
        ("model_type", "gdn", "is a model of ours already"),
    ],
)
def test_a_wrong_checkpoint_is_told_and_leaves_nothing_behind(tmp_path, name, x, message):
    stocks("qwen3_5_text").save_pretrained(tmp_path / "theirs")
    changed(tmp_path / "theirs", name, x)
    with pytest.raises(ValueError, match=message):
        from_any(tmp_path / "theirs", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of(mixers=(GatedDeltaNet(3, 6, 12), Attention(4, 6))), "Attention: qk_norm is 'none', .*'head' only"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12, n_h=2), QWEN_ATTENTION)), "n_h is 2, transformers' qwen3_5 has 1"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12, beta_max=2.0), QWEN_ATTENTION)), "beta_max is 2.0, .*has 1 only"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12), OLMO_ATTENTION)), "out_eps is 1e-06, .*1e-05 only"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12), GatedDeltaNet(2, 6, 12))), "several kinds of a mixer"),
        (config_of(mixers=(Attention(3, 8), Attention(3, 8, window=5))), "several kinds of attention"),
        (config_of(mixers=(Attention(3, 8, gate=True),)), "Attention: gate is True, transformers' llama has False"),
        (config_of(mixers=(Mamba2(6, 10, 8),)), "d_ff is 20, transformers' mamba2 has no MLP"),
        (config_of(mixers=(Mamba(50, 3),), d_ff=0), "mamba is 50 wide, transformers has whole multiples of d_model"),
        (config_of(mixers=(RetNet(2, 8, 10),)), "transformers has no model of RetNet"),
    ],
)
def test_what_transformers_does_not_have_is_told(tmp_path, config, message):
    saved(config, tmp_path / "ours")
    with pytest.raises(ValueError, match=message):
        to_transformers(tmp_path / "ours", tmp_path / "theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_the_command_converts_there_and_back(tmp_path, capsys):
    ours, theirs, back = (str(tmp_path / name) for name in ("ours", "theirs", "back"))
    model = saved(MODELS["qwen3_5_text"], Path(ours))
    assert cli.main(["convert", ours, theirs, "--to", "transformers"]) is None
    assert cli.main(["convert", theirs, back]) is None
    assert "back: 5 layers of GatedDeltaNet, Attention, 24 wide" in capsys.readouterr().out
    assert load(back).config == model.config
