"""Models of ours and of Hugging Face read alike: against plain forward passes, and against each other."""

import gzip
import json
from importlib import import_module

import pytest
import torch
from tiny_models import BYTES, POSITIONS, make, ours, write
from transformers import LlamaForCausalLM

from gated_deltanet import cli, save
from gated_deltanet.eval import hf_model
from gated_deltanet.eval.checkpoint import open_model
from gated_deltanet.eval.hf_model import HFModel, open_hf_model
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.needle import TASKS, WORDS, ask, haystack
from gated_deltanet.interop.huggingface import to_fast_tokenizer, to_huggingface


def random_row(length: int) -> list[int]:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def plain_losses(model, row: list[int]):
    """In one pass, without a cache."""
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([row[:-1]]), use_cache=False).logits[0].double()
    return -logits.log_softmax(-1).gather(1, torch.tensor(row[1:])[:, None])[:, 0]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mamba2"])
def test_losses_carry_the_cache_from_piece_to_piece(architecture, monkeypatch):
    monkeypatch.setattr(hf_model, "PIECE", 23)
    model, row = HFModel(make(architecture), to_fast_tokenizer(BYTES)), random_row(100)
    assert model.piece == 23
    torch.testing.assert_close(model.losses(row), plain_losses(make(architecture), row), rtol=1e-4, atol=1e-4)
    assert model.losses(row[:1]).numel() == 0


def test_a_model_that_forgets_its_cache_reads_all_at_once():
    class Forgetful(LlamaForCausalLM):
        def forward(self, input_ids=None, past_key_values=None, **others):  # pyright: ignore
            return super().forward(input_ids, past_key_values=None, **others)

    llama, row = make("llama"), random_row(100)
    model = HFModel(Forgetful(llama.config), to_fast_tokenizer(BYTES))
    model.model.load_state_dict(llama.state_dict())
    assert model.piece is None
    torch.testing.assert_close(model.losses(row), plain_losses(llama, row), rtol=1e-4, atol=1e-4)


def test_a_table_of_positions_ends_and_rotary_ones_do_not():
    gpt2, llama = (HFModel(make(name), to_fast_tokenizer(BYTES)) for name in ("gpt2", "llama"))
    assert (gpt2.max_positions, llama.max_positions) == (POSITIONS, None)
    assert gpt2.losses(random_row(POSITIONS + 1)).isfinite().all()
    assert llama.losses(random_row(POSITIONS + 50)).isfinite().all()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_completions_are_the_most_probable_whatever_the_models_settings(architecture):
    plain = make(architecture).eval()
    plain.generation_config.update(do_sample=True, temperature=3.0, repetition_penalty=2.0, eos_token_id=256)
    model = HFModel(plain, to_fast_tokenizer(BYTES))
    prompts = [random_row(9), random_row(9)[::-1], random_row(14)]
    for prompt, text in zip(prompts, model.complete(prompts, 12), strict=True):
        row = list(prompt)
        while len(row) < len(prompt) + 12 and row[-1] != 256:
            with torch.no_grad():
                row.append(int(plain(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
        assert text == BYTES.decode(row[len(prompt) :])


@pytest.mark.parametrize("architecture", ["gdn", "gdn-h1", "transformer"])
def test_a_model_of_ours_and_its_export_read_alike(architecture, tmp_path):
    to_huggingface(ours(architecture), BYTES).save_pretrained(tmp_path)
    to_fast_tokenizer(BYTES).save_pretrained(tmp_path)
    here, there = OurModel(ours(architecture), BYTES), open_hf_model(str(tmp_path), "cpu")
    text = "No <|endoftext|> ends a text, naïve or not. " * 30
    row = [here.first_token, *here.encode(text)]
    assert row == [there.first_token, *there.encode(text)]
    assert there.piece == hf_model.PIECE < len(row)
    torch.testing.assert_close(here.losses(row), there.losses(row), rtol=0, atol=1e-4)
    hay = haystack(TASKS["S-NIAH-1"], None, here.encode)
    asked = [ask(TASKS["S-NIAH-1"], 600, n, hay, WORDS, there.encode, there.first_token) for n in range(3)]
    prompts = [question.tokens for question in asked]
    assert here.complete(prompts, 40) == there.complete(prompts, 40)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_needles_are_hidden_for_any_model_and_lengths_beyond_it_are_named(architecture, tmp_path, capsys):
    command = ["eval", write(architecture, tmp_path), "--suite", "needle", "--lengths", "600", "701", "--limit", "2"]
    assert cli.main([*command, "--json"]) is None
    document = json.loads(capsys.readouterr().out)
    lengths = [cell["length"] for cell in document["cells"]]
    assert lengths == ([600] if architecture == "gpt2" else [600, 701])
    if architecture == "gpt2":
        assert document["left_out"]["S-NIAH-1 701"] == "701 tokens, expected at most the 700 that the model can read"


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_perplexities_are_of_any_model_and_lengths_beyond_it_are_named(architecture, tmp_path, capsys, monkeypatch):
    suite = import_module("gated_deltanet.eval.extrapolation")
    monkeypatch.setattr(suite, "buckets", lambda most: [600, most])
    folder, text = write(architecture, tmp_path / "model"), "It was night. " * 80
    (tmp_path / "govreport").mkdir()
    (tmp_path / "govreport" / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": text}).encode()))
    command = ["eval", folder, "--suite", "extrapolation", "--data-dir", str(tmp_path), "--json", "--max-length"]
    assert cli.main([*command, "900"]) is None
    document = json.loads(capsys.readouterr().out)
    points = document["corpora"]["GovReport"]["points"]
    expected = plain_losses(make(architecture), [256, *text.encode()][:601]).mean().exp()
    assert points[0]["perplexity"] == pytest.approx(float(expected), rel=1e-4)
    if architecture == "gpt2":
        assert document["refused"] == {"900": "the model has positions for 700 tokens"}
        assert len(points) == 1
        monkeypatch.setattr(suite, "buckets", lambda most: [most])
        assert cli.main([*command, "900"]) == 2
        assert "--max-length 700" in capsys.readouterr().err
    else:
        assert [point["tokens"] for point in points] == [600, 300]


def test_a_tokenizer_without_a_beginning_or_an_end_is_refused():
    bare = to_fast_tokenizer(BYTES)
    bare.bos_token = bare.eos_token = None
    with pytest.raises(ValueError, match="expected bos_token or eos_token"):
        HFModel(make("llama"), bare)


def test_without_transformers_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gated_deltanet.eval.checkpoint.find_spec", lambda name: None)
    assert cli.main(["eval", write("gpt2", tmp_path), "--suite", "needle"]) == 2
    assert "pip install 'gated-deltanet[hf]'" in capsys.readouterr().err


def test_a_saved_model_of_ours_is_read_by_our_own_path(tmp_path):
    save(ours("gdn"), tmp_path, BYTES)
    assert isinstance(open_model(tmp_path), OurModel)
