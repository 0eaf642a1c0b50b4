"""Models of one's own: a file, changes to a preset, the weights of another model; and training on answers only."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from small import (
    HERE,
    VALUES,
    gdn,
    learnt,
    losses,
    options,
    records,
    resume_to_end,
    run_to_end,
    small_recipe,
    write_texts,
)

from gated_deltanet import CausalLM, cli, get_preset, load, save
from gated_deltanet.data import get_tokenizer, prepare
from gated_deltanet.interop.folder import load_config
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.config import changed
from gated_deltanet.train import resolve, resume, train
from gated_deltanet.train.checkpoint import checkpoints
from gated_deltanet.train.run import start

OWN = """
d_model = 16
n_layers = 3
d_ff = 24

[[mixers]]
mixer = "GatedDeltaNet"
n_heads = 2
d_k = 4
d_v = 8
gate = false

[[mixers]]
mixer = "Attention"
n_heads = 2
d_head = 8
window = 32
"""
QUICK = VALUES | {"tokens": 192 * 4, "validate_every": 100}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.toml").write_text(OWN)
    return tmp_path / "mine.toml"


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """A model to start from."""
    folder = tmp_path_factory.mktemp("first") / "run"
    run_to_end(data, folder, **QUICK, set=["d_ff=40"])
    return folder


def command(*args: object, **settings) -> int | None:
    return cli.main(gdn("train", *args, *options(**settings))[3:])


def test_model_of_a_file_is_trained_kept_and_taken_up(own, data, tmp_path):
    folder = tmp_path / "run"
    assert command(**VALUES, model=own, data=data, out=folder) is None
    config = load_config(folder)
    assert [type(mixer) for mixer in config.mixers] == [GatedDeltaNet, Attention]
    assert (config.d_ff, config.vocab_size, config.to_dict()["mixers"][0]["gate"]) == (24, 257, False)
    own.write_text(OWN.replace("24", "48"))  # the run has its own
    before = learnt(folder)
    shutil.rmtree(checkpoints(folder / "checkpoints")[0])
    resume_to_end(folder)
    assert learnt(folder) == before
    assert load_config(folder) == config


def test_config_of_a_run_makes_the_same_model(first, data, tmp_path):
    run = start(small_recipe(data, model=str(first / "config.json"), preset=None), tmp_path / "run", HERE)
    assert run.model.config == load_config(first)
    assert run.recipe.name == first.name


def test_a_preset_is_changed_by_dotted_names(data, tmp_path):
    set_ = ["--set", "mixers.0.gate=false", "--set", "d_ff=40"]
    assert command("gdn-nano", *set_, **QUICK, data=data, out=tmp_path / "run") is None
    config = load_config(tmp_path / "run")
    assert (config.to_dict()["mixers"][0]["gate"], config.d_ff) == (False, 40)
    assert command(config=tmp_path / "run" / "recipe.toml", out=tmp_path / "again") is None
    assert losses(tmp_path / "again") == losses(tmp_path / "run")
    assert resolve("gdn-nano", None, {"set": {"d_ff": 40}}).set == ("d_ff=40",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("d_fff=512", "a field to change is 'd_fff', expected perhaps d_ff"),
        ("mixers.0.gates=false", "a field to change in mixers.0 is 'gates', expected perhaps gate"),
        ("mixers.1.gate=false", "a field to change is in mixers.1, expected a number from 0 to 0"),
        ("d_ff.0=1", "a field to change is d_ff.0, but d_ff has no fields"),
        ("mixers.0.gate=3", "gate is 3, expected True or False"),
        ("d_ff=many", "d_ff is 'many', expected a whole number"),
        ("d_ff", "a change is 'd_ff', expected NAME=VALUE"),
    ],
)
def test_a_change_that_cannot_be_made_is_told_with_what_was_perhaps_meant(change, message):
    with pytest.raises(ValueError, match=message):
        changed(get_preset("gdn-nano"), [change])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gdn-nano", "--set", "vocab_size=9"], "vocab_size cannot be set: it is the tokenizer's"),
        (["gdn-nano", "--set", "d_fff=9"], "expected perhaps d_ff"),
        (["--model", "absent.toml"], "there is no file absent.toml, expected the description of a model"),
        (["gdn-nano", "--model", "a.toml"], "preset is gdn-nano and model a.toml, expected one of them"),
        (["--init", "absent"], "there is no folder absent, expected that of a saved model"),
        (["--model", "bad.toml"], "bad.toml: ModelConfig: a field is 'd_modell', expected perhaps d_model"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(args, message, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("d_modell = 3\n")
    assert command(*args, data=data, out="run") == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_starts_from_the_weights_and_tokenizer_of_a_model(first, data, tmp_path):
    run = start(small_recipe(data, init=str(first), preset=None, **QUICK), tmp_path / "run", HERE)
    weights = load(first).state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in run.model.state_dict().items())
    assert (run.counters.step, run.optimizer.state) == (0, {})
    assert run.model.config == load_config(first)


def test_a_run_from_weights_is_taken_up_before_and_after_its_first_checkpoint(first, data, tmp_path):
    moved, values = tmp_path / "moved", VALUES | {"tokens": 192 * 6}
    shutil.copytree(first, moved)
    run_to_end(data, tmp_path / "straight", init=str(moved), preset=None, **values)
    start(small_recipe(data, init=str(moved), preset=None, **values), tmp_path / "begun", HERE)
    resume_to_end(tmp_path / "begun")
    assert losses(tmp_path / "begun") == losses(tmp_path / "straight")
    assert losses(tmp_path / "begun")[0] < losses(first)[0]
    shutil.rmtree(moved)
    shutil.rmtree(checkpoints(tmp_path / "begun" / "checkpoints")[0])
    resume_to_end(tmp_path / "begun")
    assert losses(tmp_path / "begun") == losses(tmp_path / "straight")


def test_weights_of_another_model_are_refused_with_the_tensors_named(first, data, tmp_path):
    with pytest.raises(
        ValueError, match=r"not of this model: layers\.0\.mlp\.\S+ is \[.*\], expected \[.*and \d+ more"
    ):
        start(small_recipe(data, init=str(first)), tmp_path / "run", HERE)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"layers\.4\.\S+ is missing"):
        start(small_recipe(data, init=str(first), set=["n_layers=5", "d_ff=40"]), tmp_path / "run", HERE)


def test_the_tokenizer_of_the_model_counts_more_than_one_named_before_it(first):
    before, init = {"tokenizer": "mistral"}, {"init": str(first)}
    assert resolve(None, None, before, init).tokenizer == str(first)
    assert resolve(None, None, init, before).tokenizer == "mistral"


def test_another_tokenizer_than_the_models_is_refused(first, data, tmp_path):
    with pytest.raises(ValueError, match=r"the tokenizer is not that of .*, expected the same"):
        start(small_recipe(data, init=str(first), preset=None, tokenizer="bpe:300"), tmp_path / "run", HERE)


def test_python_trains_and_resumes_as_the_command_does(data, tmp_path):
    recipe = small_recipe(data, **QUICK)
    done = train(recipe, tmp_path / "run", quiet=True)
    assert done.finished
    assert command("gdn-nano", **QUICK, data=data, out=tmp_path / "other") is None
    assert losses(tmp_path / "run") == losses(tmp_path / "other")
    shutil.rmtree(checkpoints(tmp_path / "run" / "checkpoints")[0])
    assert resume(tmp_path / "run", {"micro_rows": 4}, quiet=True).counters == done.counters
    assert losses(tmp_path / "run") == losses(tmp_path / "other")


def test_only_answers_are_learnt_from_texts_and_from_shards(tmp_path):
    """All answers are alike: their loss falls to nothing, whatever the questions are."""
    rows = [{"prompt": f"{i * 7919 % 9973}?", "answer": " yes"} for i in range(300)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = VALUES | {"tokens": 192 * 40, "peak_lr": 0.01, "validate_every": 40}
    run = run_to_end(tmp_path / "x.jsonl", tmp_path / "texts", **values)
    valid = next(record for record in records(tmp_path / "texts") if "valid_loss" in record)
    assert valid["valid_loss"] < 0.3
    assert valid["valid_bits_per_byte"] == pytest.approx(valid["valid_loss"] / 0.693147 * 5 / 4, rel=1e-4)
    assert run.train.n_learnt == 5 * len(run.train.corpus)
    prepare(str(tmp_path / "x.jsonl"), "bytes", tmp_path / "tokens", valid=0.2)
    run_to_end(tmp_path / "tokens", tmp_path / "shards", **values)
    assert losses(tmp_path / "shards") == losses(tmp_path / "texts")


def test_chat_template_goes_with_the_tokenizer_into_the_runs_folder(tmp_path):
    model = tmp_path / "model"
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), model, get_tokenizer("bytes"))
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    (model / "chat_template.jinja").write_text(template)
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "x.jsonl").write_text(json.dumps({"messages": talk}) + "\n" + '{"messages": []}\n' + '{"text": "a"}\n')
    recipe = small_recipe(tmp_path / "x.jsonl", init=str(model), preset=None, valid=0.5, seed=3)
    with pytest.warns(UserWarning, match="1 no answer in the messages"):
        run = start(recipe, tmp_path / "run", HERE)
    assert (tmp_path / "run" / "chat_template.jinja").read_text() == template
    read = [bytes(each.tokens(0).astype("uint8")) for each in (run.train.corpus, run.valid.corpus)]
    assert all(b"[user]hi[assistant]ho" in content for content in read)


def test_a_folder_to_start_from_that_is_not_there_is_named_as_one(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nothere, expected that of a saved model"):
        start(small_recipe(data, init=str(tmp_path / "nothere")), tmp_path / "run", HERE)
    assert not (tmp_path / "run").exists()
