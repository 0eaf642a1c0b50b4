import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gated_deltanet import CausalLM, ModelConfig, get_preset, load, save
from gated_deltanet.data import tokenizer
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.presets import MIXERS

SMALL = ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50)


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_saved_model_comes_back_with_the_same_logits(name, tmp_path):
    model, tokens = CausalLM(get_preset(f"{name}-nano")), torch.arange(20)[None]
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    assert all(p.requires_grad for p in again.parameters())


def test_dtypes_are_kept_and_decays_are_float32(tmp_path):
    save(CausalLM(SMALL).to(torch.bfloat16), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: x.bfloat16() for name, x in tensors.items()}, tmp_path / "model.safetensors")  # as others may
    for name, p in load(tmp_path).named_parameters():
        assert p.dtype == (torch.float32 if name.endswith(("A_log", "dt_bias")) else torch.bfloat16)


def test_folder_is_as_hugging_face_wants_it(tmp_path):
    model = CausalLM(SMALL)
    save(model, tmp_path / "a" / "b", tokenizer.byte_tokenizer())
    folder = tmp_path / "a" / "b"
    of_tokenizer = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"} | of_tokenizer
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gdn", ["GdnForCausalLM"])
    assert set(load_file(folder / "model.safetensors")) == {f"model.{name}" for name in model.state_dict()}
    assert tokenizer.load(folder).get_vocab_size() == 257


def test_weights_are_aligned_as_torch_allocates_them(tmp_path):
    """Where they begin elsewhere, matrix products may round otherwise."""
    save(CausalLM(ModelConfig(13, 3, (GatedDeltaNet(1, 5, 7), Attention(1, 6)), 11, 53, tied=False)), tmp_path)
    assert {x.data_ptr() % 64 for x in load(tmp_path).state_dict().values()} == {0}


def test_tied_embeddings_are_stored_once(tmp_path):
    save(CausalLM(SMALL), tmp_path)
    assert [name for name in load_file(tmp_path / "model.safetensors") if "head" in name] == []


def test_saving_over_a_loaded_model_does_not_disturb_it(tmp_path):
    save(CausalLM(SMALL), tmp_path)
    model = load(tmp_path)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    save(CausalLM(SMALL), tmp_path)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())


def test_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    model = CausalLM(SMALL)
    save(model, tmp_path)
    monkeypatch.setattr("gated_deltanet.interop.folder.save_file", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(CausalLM(SMALL), tmp_path)
    assert torch.equal(load(tmp_path).embedding.weight, model.embedding.weight)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_fields_of_hugging_face_are_passed_over(tmp_path):
    save(CausalLM(SMALL), tmp_path)
    change(tmp_path, transformers_version="5.22.2", dtype="float32")
    assert load(tmp_path).config == SMALL


def change(folder, **values):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: value for name, value in config.items() if value != "gone"}))


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def rename(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.wait"] = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")


def whole_numbers(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].long()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json in"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors in"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            r"config.json: the document is \[\], expected an object",
        ),
        (lambda folder: change(folder, model_type="llama"), "model_type is 'llama', expected 'gdn'"),
        (lambda folder: change(folder, d_ff="gone"), "d_ff is missing, expected all of d_model"),
        (lambda folder: change(folder, d_model=13), r"embedding.weight is \[50, 12\], expected \[50, 13\]"),
        (lambda folder: change(folder, n_layers=3), "model.layers.2.*more is missing"),
        (lambda folder: change(folder, tied=False), "model.head.weight is missing"),
        (lambda folder: change(folder, n_layers=10**9), "n_layers is 1000000000, expected at most .*, the tensors in"),
        (lambda folder: change(folder, d_ff=2**62), "config.json describes no model that torch can hold"),
        (lambda folder: change(folder, mixers=[{"mixer": []}]), r"mixer is \[\], expected"),
        (lambda folder: change(folder, n_layers=1), "holds model.layers.1.*expected only tensors"),
        (lambda folder: change(folder, mixers=[{"mixer": "Mamba3"}]), "mixer is 'Mamba3', expected perhaps Mamba"),
        (lambda folder: change(folder, mixers=[{"n_heads": 3}]), "expected fields with a name under 'mixer'"),
        (lambda folder: change(folder, mixers=3), "mixers is 3, expected a list"),
        (cut, "model.safetensors is not a whole safetensors file"),
        (rename, "model.norm.weight is missing"),
        (whole_numbers, "model.norm.weight is torch.int64, expected a floating-point type"),
    ],
)
def test_spoiled_checkpoint_is_refused_with_the_reason(spoil, message, tmp_path):
    save(CausalLM(SMALL), tmp_path)
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(tmp_path)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere, expected that of a saved model"):
        load(tmp_path / "nowhere")


def test_preset_without_a_folder_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"gdn-nano is a preset, .* as `gdn train gdn-nano` makes one"):
        load("gdn-nano")
    save(CausalLM(SMALL), "gdn-nano")
    assert load("gdn-nano").config == SMALL
