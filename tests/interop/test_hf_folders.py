"""Folders that both sides read: weights, configuration, tokenizer."""

import copy
import json
from dataclasses import fields

import pytest
import torch
from hf_models import ARCHITECTURES, SMALL, generate, nano, padded, tokens
from safetensors.torch import load_file, save_file

from gated_deltanet import CausalLM, ModelConfig, get_preset, load, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.layers import GatedDeltaNet

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from gated_deltanet.interop.huggingface import GdnConfig, GdnForCausalLM, from_huggingface, to_huggingface  # noqa: E402


@pytest.fixture(scope="module", params=ARCHITECTURES, name="model")
def every_architecture(request):
    return nano(request.param)


@torch.no_grad()
def test_folders_are_read_by_both_sides_with_the_same_logits(model, tmp_path):
    save(model, tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    expected = model(tokens(2, 20))[0]
    assert isinstance(theirs, GdnForCausalLM)
    assert not theirs.training
    for logits in (
        theirs(tokens(2, 20)).logits,
        again(tokens(2, 20)).logits,
        load(tmp_path / "theirs")(tokens(2, 20))[0],
    ):
        assert torch.equal(logits, expected)
    assert load(tmp_path / "theirs").config == model.config
    assert {x.data_ptr() % 64 for x in theirs.parameters()} == {0}  # as torch allocates: see `files.read_tensors`


@pytest.mark.parametrize("how", ["dtype", "to", "auto"])
def test_decay_parameters_stay_float32(model, how, tmp_path):
    save(model if how != "auto" else copy.deepcopy(model).to(torch.bfloat16), tmp_path)
    dtype = {"dtype": torch.bfloat16} if how == "dtype" else {}
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, **dtype)
    for name, p in (hf.to(torch.bfloat16) if how == "to" else hf).named_parameters():
        assert p.dtype == (torch.float32 if name.endswith(("A_log", "dt_bias")) else torch.bfloat16), name
    saved = dict(model.named_parameters())
    for name, p in hf.model.named_parameters():
        if p.dtype == torch.float32:
            assert torch.equal(p, saved[name]), name
    generate(hf, padded([tokens(9), tokens(20)], "left"), n=2)


def test_conversion_shares_weights_and_keeps_the_mode(model):
    hf = to_huggingface(model, byte_tokenizer())
    assert from_huggingface(hf) is model
    assert hf.training == model.training
    assert hf.generation_config.eos_token_id == 256
    assert all(p.device.type == "cpu" for p in hf.parameters())


def test_building_keeps_our_start():
    torch.manual_seed(3)
    ours = CausalLM(get_preset("mamba-nano"))
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(GdnConfig.from_model_config(get_preset("mamba-nano")))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_config_has_the_fields_of_ours():
    theirs = {field.name for field in fields(GdnConfig)} - {
        field.name for field in fields(transformers.PreTrainedConfig)
    }
    every_model_has = {"use_cache", "bos_token_id", "eos_token_id", "pad_token_id"}
    assert theirs == {field.name for field in fields(ModelConfig)} | every_model_has
    config = GdnConfig.from_model_config(SMALL)
    assert config.to_model_config() == SMALL
    assert (config.hidden_size, config.num_hidden_layers, config.tie_word_embeddings) == (12, 2, True)


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_can_grow(tied, tmp_path):
    hf = to_huggingface(CausalLM(ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50, tied=tied)))
    hf.resize_token_embeddings(60, mean_resizing=False)
    assert hf(torch.tensor([[59]])).logits.shape[-1] == 60
    hf.save_pretrained(tmp_path)
    assert load(tmp_path).config.vocab_size == 60


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def drop_a_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mixer.decay.dt_bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (lambda folder: change(folder, model_type="gnd"), "`gnd`"),
        (lambda folder: change(folder, tide=False), "a field is 'tide', expected perhaps tied"),
        (lambda folder: change(folder, mixers=[{"mixer": "Mamba3"}]), "mixer is 'Mamba3', expected perhaps Mamba"),
        (lambda folder: change(folder, mixers=[{"mixer": "RetNet", "n_head": 3}]), "perhaps n_heads"),
        (lambda folder: change(folder, d_model=0), "d_model is 0"),
        (lambda folder: change(folder, n_layers=3), r"model\.layers\.2.*is missing, expected all weights"),
        (drop_a_tensor, r"model\.layers\.1\.mixer\.decay\.dt_bias is missing, expected all weights"),
    ],
)
def test_spoiled_folder_is_refused_with_the_reason(spoil, message, tmp_path):
    save(CausalLM(SMALL), tmp_path)
    spoil(tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_fields_of_other_tools_are_kept(tmp_path):
    save(CausalLM(SMALL), tmp_path)
    change(tmp_path, use_cache=False, quantised_by="somebody")
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.quantised_by == "somebody"
    assert config.to_model_config() == SMALL
