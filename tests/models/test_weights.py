"""Models with packed weights: in memory, in a folder, as a Hugging Face model, from the command line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gated_deltanet import CausalLM, ModelConfig, Session, get_preset, load, save
from gated_deltanet.cli import main
from gated_deltanet.data import tokenizer
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.layers.packed import PackedLinear
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.models.weights import from_nibbles, pack_weights, packed_format, to_nibbles, weight_bytes
from gated_deltanet.ops.linear import FORMATS

SMALL = ModelConfig(36, 2, (GatedDeltaNet(1, 8, 6), Attention(2, 6)), 40, 70)
TOKENS = torch.arange(20)[None] * 3


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save(CausalLM(SMALL), tmp_path / "saved", tokenizer.byte_tokenizer())
    return tmp_path / "saved"


@torch.no_grad()
@pytest.mark.parametrize(("weights", "error"), list(zip(FORMATS, (1e-6, 1e-2, 3e-2, 0.3), strict=True)))
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_rounded_weights(weights, error, tied, tmp_path):
    torch.manual_seed(0)
    model = CausalLM(ModelConfig(36, 2, (GatedDeltaNet(1, 8, 6), Attention(2, 6)), 40, 70, tied=tied))
    save(model, tmp_path / "a")
    packed, expected = load(tmp_path / "a", weights=weights), model(TOKENS)[0]
    assert packed_format(packed) == weights
    got = packed(TOKENS)[0]
    assert got.dtype == torch.float32
    assert float((got - expected).norm() / expected.norm()) < error
    save(packed, tmp_path / "b")
    again = load(tmp_path / "b")
    assert torch.equal(again(TOKENS)[0], got)
    dtypes = [{name: x.dtype for name, x in of.state_dict().items()} for of in (packed, again)]
    assert dtypes[0] == dtypes[1]


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_takes_packed_weights(name, tmp_path):
    model = CausalLM(get_preset(f"{name}-nano"))
    expected = model(TOKENS)[0]
    got = pack_weights(model, "float32")(TOKENS)[0]
    assert float((got - expected).norm() / expected.norm()) < 1e-5


def test_gates_norms_and_convolutions_stay_float32():
    model = pack_weights(CausalLM(SMALL).to(torch.bfloat16), "int4")
    names = {name for name, x in model.named_parameters() if x.dtype == torch.float32}
    assert names == {name for name, _ in model.named_parameters()}
    assert {"layers.0.mixer.a_proj.weight", "layers.0.mixer.q_conv.weight", "norm.weight"} <= names
    formats = {name: module.format for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    assert set(formats.values()) == {"int4"}
    assert weight_bytes(model) < weight_bytes(CausalLM(SMALL))


def test_sessions_with_packed_weights_can_be_cut_anywhere(folder):
    model = load(folder, weights="int8")
    whole, cut = Session(model), Session(model)
    whole.append(TOKENS[0, :1])
    for token in TOKENS[0, 1:]:
        whole.append(token[None])
    cut.append(TOKENS[0, :1])
    for token in TOKENS[0, 1:]:
        cut = cut.fork()
        cut.append(token[None])
    assert torch.equal(whole.logits, cut.logits)


def test_an_adapter_around_frozen_weights_learns(folder):
    model = load(folder, weights="int4")
    shift = torch.zeros(36, requires_grad=True)
    mixer = model.layers[0].mixer
    y, _ = mixer(torch.randn(1, 5, 36) + shift)
    y.square().sum().backward()
    assert shift.grad is not None
    assert shift.grad.abs().sum() > 0


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_whole_numbers_are_stored_as_llama_cpp_orders_them(folder, weights, tmp_path):
    packed = load(folder, weights=weights)
    save(packed, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    name = "model.layers.0.mixer.q_proj"
    whole, scale = tensors[f"{name}.weight"], tensors[f"{name}.scale"]
    if weights == "int4":
        first = whole[:, :16]
        whole = torch.cat([(first & 15).to(torch.int8) - 8, (first >> 4).to(torch.int8) - 8], 1)
    dense = whole[:, :32].float() * scale[:, :1].float()
    module = packed.get_submodule("layers.0.mixer.q_proj")
    assert isinstance(module, PackedLinear)
    assert torch.equal(dense, module.weight[:, :32])


def test_nibbles_come_back():
    whole = torch.randint(-8, 8, (3, 64), dtype=torch.int8)
    assert torch.equal(from_nibbles(to_nibbles(whole)), whole)


def damage(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


NAME = "model.layers.0.mixer.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{NAME}.scale"), "q_proj.scale is missing, expected torch.float16"),
        (lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"][:, :32].clone()}), r"q_proj.weight is .*expected"),
        (lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"].float()}), "is torch.float32 .*expected torch.int8"),
        (lambda t: t.update({f"{NAME}.scale": t[f"{NAME}.scale"] / 0}), "scale holds numbers that are not finite"),
        (lambda t: t.update({"other": torch.zeros(2)}), "holds other, expected only tensors"),
        (lambda t: t.update({"model.norm.scale": torch.zeros(2)}), "holds model.norm.scale, expected only tensors"),
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
    ],
)
def test_a_damaged_folder_is_refused(folder, tmp_path, change, message):
    save(load(folder, weights="int8"), tmp_path / "b")
    damage(tmp_path / "b", change)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "b")


def test_a_format_that_does_not_fit_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="weights is 'int3', expected one of float32, bfloat16, int8, int4"):
        load(folder, weights="int3")
    save(load(folder, weights="int8"), tmp_path / "b")
    with pytest.raises(ValueError, match="are int8, expected floating-point ones to make int4 of"):
        load(tmp_path / "b", weights="int4")
    with pytest.raises(ValueError, match="are int8 already"):
        pack_weights(load(tmp_path / "b"), "int8")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps(config | {"weights": "q5"}))
    with pytest.raises(ValueError, match="weights is 'q5', expected one of"):
        load(tmp_path / "b")


def test_transformers_reads_the_folder(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    import gated_deltanet.interop.huggingface  # noqa: F401

    packed = load(folder, weights="int4")
    save(packed, tmp_path / "b", tokenizer.byte_tokenizer())
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, packed(TOKENS)[0])
    model.save_pretrained(tmp_path / "c")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, packed(TOKENS)[0])


def test_the_command_quantises_and_generates(folder, tmp_path, capsys):
    bytes_model = CausalLM(ModelConfig(36, 2, (GatedDeltaNet(1, 8, 6),), 40, 257))
    save(bytes_model, tmp_path / "bytes", tokenizer.byte_tokenizer())
    assert main(["quantize", str(tmp_path / "bytes"), "--weights", "int8", "--out", str(tmp_path / "q")]) is None
    assert "int8, 0." in capsys.readouterr().out
    options = ["--prompt", "ab", "--temperature", "0", "--max-tokens", "5", "--json"]
    assert main(["generate", str(tmp_path / "q"), *options]) is None
    stored = json.loads(capsys.readouterr().out)["completion"]
    assert main(["generate", str(tmp_path / "bytes"), "--weights", "int8", *options]) is None
    assert json.loads(capsys.readouterr().out)["completion"] == stored
    assert main(["quantize", str(tmp_path / "bytes"), "--out", str(tmp_path / "q")]) == 2
    assert "holds something already" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "bytes"), "--weights", "int3", *options]) == 2
    assert "--weights is 'int3', expected one of" in capsys.readouterr().err
