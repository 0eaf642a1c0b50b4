"""Checkpoints of the paper's official code as ours and back, on one made up here by its names and shapes."""

import pickle
from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, cli, load, save
from gated_deltanet.interop.convert import from_any, from_nvlabs, to_nvlabs
from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba2
from gated_deltanet.models.config import ModelConfig

D, FF, VOCAB, KEYS, VALUES, H = 24, 20, 31, 18, 36, 3
GDN = {
    "A_log": (H,), "D": (H,), "dt_bias": (H,), "q_proj.weight": (KEYS, D), "k_proj.weight": (KEYS, D),
    "v_proj.weight": (VALUES, D), "g_proj.weight": (VALUES, D), "gk_proj.weight": (H, D), "b_proj.weight": (H, D),
    "b_proj.bias": (H,), "q_conv1d.weight": (KEYS, 1, 4), "k_conv1d.weight": (KEYS, 1, 4),
    "v_conv1d.weight": (VALUES, 1, 4), "g_norm_swish_gate.weight": (12,), "o_proj.weight": (D, VALUES),
}  # fmt: skip
SWA = {"attn.weight": ((4 + 2 * 2) * 6, D), "proj.weight": (D, D)}
BLOCK = {"norm_1.weight": (D,), "norm_2.weight": (D,)}
BLOCK |= {"mlp.swiglu.w1.weight": (FF, D), "mlp.swiglu.w2.weight": (FF, D), "mlp.swiglu.w3.weight": (D, FF)}


def checkpoint(file, **changes):
    torch.manual_seed(0)
    shapes = {"transformer.wte.weight": (VOCAB, D), "transformer.ln_f.weight": (D,)}
    for i, mixer in enumerate((GDN, SWA, GDN, SWA)):
        layer = BLOCK | {f"attn.{name}": shape for name, shape in mixer.items()}
        shapes |= {f"transformer.h.{i}.{name}": shape for name, shape in layer.items()}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    tensors |= changes
    tensors = {name: x for name, x in tensors.items() if x is not None}
    torch.save({"model": tensors, "iter_num": 7, "hparams": {"lr": 1e-4}}, file)
    return tensors


def test_every_tensor_has_its_place(tmp_path):
    w = checkpoint(tmp_path / "x.pth")
    config = from_nvlabs(tmp_path / "x.pth", tmp_path / "ours", d_head=6, window=9)
    assert config.mixers == (GatedDeltaNet(H, 6, 12, beta_bias=True), Attention(4, 6, 2, window=9))
    assert (config.d_model, config.n_layers, config.d_ff, config.vocab_size, config.tied) == (D, 4, FF, VOCAB, True)
    model = load(tmp_path / "ours")
    get = model.get_parameter
    assert torch.equal(get("layers.2.mixer.b_proj.bias"), w["transformer.h.2.attn.b_proj.bias"])
    assert torch.equal(get("layers.2.mixer.a_proj.weight"), w["transformer.h.2.attn.gk_proj.weight"])
    assert torch.equal(get("layers.0.mixer.k_conv.weight"), w["transformer.h.0.attn.k_conv1d.weight"][:, 0])
    assert torch.equal(get("layers.1.mlp.out_proj.weight"), w["transformer.h.1.mlp.swiglu.w3.weight"])
    groups = w["transformer.h.3.attn.attn.weight"].view(2, 4, 6, D)  # of each: two queries, a key, a value
    assert torch.equal(get("layers.3.mixer.q_proj.weight"), groups[:, :2].reshape(24, D))
    assert torch.equal(get("layers.3.mixer.k_proj.weight"), groups[:, 2].reshape(12, D))
    assert torch.equal(get("layers.3.mixer.v_proj.weight"), groups[:, 3].reshape(12, D))


def test_a_folder_that_is_not_there_is_told(tmp_path):
    checkpoint(tmp_path / "x.pth")
    from_nvlabs(tmp_path / "x.pth", tmp_path / "ours", d_head=6)
    with pytest.raises(OSError, match=r"none/x.pth could not be written: No such file or directory"):
        to_nvlabs(tmp_path / "ours", tmp_path / "none" / "x.pth")
    with pytest.raises(OSError, match=r"x.pth/ours could not be written: Not a directory"):
        from_nvlabs(tmp_path / "x.pth", tmp_path / "x.pth" / "ours", d_head=6)


def test_the_command_takes_a_file(tmp_path, capsys):
    wide = {f"transformer.h.{i}.attn.attn.weight": None for i in (1, 3)}
    checkpoint(tmp_path / "x.pth", **wide)
    assert cli.main(["convert", str(tmp_path / "x.pth"), str(tmp_path / "ours")]) == 2
    assert "transformer.h.1.attn.A_log is missing" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    before = checkpoint(tmp_path / "x.pth")
    from_nvlabs(tmp_path / "x.pth", tmp_path / "ours", d_head=6, window=9)
    to_nvlabs(tmp_path / "ours", tmp_path / "y.pth")
    after = torch.load(tmp_path / "y.pth", weights_only=True)["model"]
    assert after.keys() == before.keys()
    for name, x in before.items():
        expected = torch.ones(H) if name.endswith(".D") else x  # which nothing reads
        assert torch.equal(after[name], expected), name
    embedding, head = after["transformer.wte.weight"], after["lm_head.weight"]
    assert embedding.data_ptr() == head.data_ptr()  # stored once


def test_a_model_of_ours_goes_there_and_back(tmp_path, capsys):
    torch.manual_seed(0)
    model = CausalLM(ModelConfig(D, 3, (GatedDeltaNet(H, 6, 12), Attention(4, 6, window=9)), FF, VOCAB)).bfloat16()
    save(model, tmp_path / "ours")
    cli.main(["convert", str(tmp_path / "ours"), str(tmp_path / "x.pth"), "--to", "nvlabs"])
    assert "3 layers of GatedDeltaNet, Attention, 24 wide" in capsys.readouterr().out
    config = from_nvlabs(tmp_path / "x.pth", tmp_path / "back", d_head=6, window=9)
    assert config.mixers == (GatedDeltaNet(H, 6, 12, beta_bias=True), Attention(4, 6, window=9))
    back = load(tmp_path / "back").state_dict()
    biases = {name for name in back if name.endswith("b_proj.bias")}
    assert not any(back.pop(name).any() for name in biases)
    assert all(torch.equal(back[name], x) for name, x in model.state_dict().items())
    assert back.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tied": False}, "tied is False and d_ff is 20, official code has tied embeddings and MLPs"),
        ({"norm_eps": 1e-6}, "ModelConfig: norm_eps is 1e-06, official code has 1e-05 only"),
        ({"mixers": (Mamba2(3, 4, 8),)}, "the model has Mamba2, which official code does not have"),
        ({"mixers": (GatedDeltaNet(3, 4, 8, beta_max=2.0),)}, "beta_max is 2.0, official code has 1 only"),
        ({"mixers": (GatedDeltaNet(3, 4, 8, conv_size=None),)}, "conv_size is None, official code has convolutions"),
        ({"mixers": (Attention(3, 8, gate=True),)}, "Attention: gate is True, official code has False only"),
    ],
)
def test_what_official_code_does_not_have_is_told(tmp_path, changes, message):
    config = ModelConfig(D, 2, (GatedDeltaNet(3, 4, 8),), FF, VOCAB)
    save(CausalLM(replace(config, **changes)), tmp_path / "ours")
    with pytest.raises(ValueError, match=message):
        to_nvlabs(tmp_path / "ours", tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"y.bin is no name of a checkpoint of official code.* ends in .pth"):
        to_nvlabs(tmp_path / "ours", tmp_path / "y.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("transformer.h.0.attn.k_proj.weight", None, "k_proj.weight is missing"),
        ("transformer.h.0.attn.k_proj.weight", torch.ones(5, D), r"k_proj.weight is \[5, 24\], expected \[18, 24\]"),
        ("transformer.h.1.attn.attn.bias", torch.ones(48), "attn.attn.bias has no place in our model"),
        ("lm_head.weight", torch.ones(VOCAB, D), "expected tied embeddings"),
        ("transformer.wte.weight", torch.ones(VOCAB, D, dtype=torch.int64), "holds no tensors by their names"),
    ],
)
def test_a_wrong_checkpoint_is_told_and_leaves_nothing_behind(tmp_path, name, x, message):
    checkpoint(tmp_path / "x.pth", **{name: x})
    with pytest.raises(ValueError, match=message):
        from_nvlabs(tmp_path / "x.pth", tmp_path / "ours", d_head=6)
    assert [path.name for path in tmp_path.iterdir()] == ["x.pth"]


class Run:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_nothing_in_a_file_is_run(tmp_path, capsys):
    torch.save({"model": {"x": Run()}}, tmp_path / "x.pth")
    (tmp_path / "y.pth").write_bytes(pickle.dumps(Run()))
    for name in ("x.pth", "y.pth"):
        with pytest.raises(ValueError, match="is no file of tensors and plain values"):
            from_any(tmp_path / name, tmp_path / "ours")
    assert "must not run" not in capsys.readouterr().out
    assert not (tmp_path / "ours").exists()
