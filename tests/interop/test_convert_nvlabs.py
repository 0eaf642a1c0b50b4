"""Checkpoints of the paper's official code as ours, on one made up here by its names and shapes."""

import pickle

import pytest
import torch

from gated_deltanet import cli, load
from gated_deltanet.interop.convert import from_any, from_nvlabs
from gated_deltanet.layers import Attention, GatedDeltaNet

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


def test_the_command_takes_a_file(tmp_path, capsys):
    wide = {f"transformer.h.{i}.attn.attn.weight": None for i in (1, 3)}
    checkpoint(tmp_path / "x.pth", **wide)
    assert cli.main(["convert", str(tmp_path / "x.pth"), str(tmp_path / "ours")]) == 2
    assert "transformer.h.1.attn.A_log is missing" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


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
