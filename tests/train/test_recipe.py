from dataclasses import fields

import pytest

from gated_deltanet import cli, data, interop, train
from gated_deltanet.files import read_toml
from gated_deltanet.models.presets import PRESETS
from gated_deltanet.train.recipe import Recipe, as_toml, from_values, meanings, read_recipe, read_settings
from gated_deltanet.train.recipes import RECIPES, resolve
from gated_deltanet.train.run import CHANGEABLE


def test_the_papers_recipe_is_section_4():
    paper = resolve(None, "paper-1.3b")
    assert (paper.preset, paper.tokens, paper.warmup_tokens, paper.length) == ("gdn-1.3b", 10**11, 10**9, 4096)
    assert (paper.peak_lr, paper.weight_decay, paper.clip) == (4e-4, 0.1, 1.0)
    assert (paper.beta1, paper.beta2, paper.final_lr, paper.spike) == (0.9, 0.95, 0.1, 0)
    assert paper.batch_tokens == 2**19
    ablations = [resolve(None, name) for name in ("paper-400m", "paper-500m")]
    assert {(each.tokens, each.warmup_tokens) for each in ablations} == {(15 * 10**9, 15 * 10**7)}
    assert not any(each.reset or each.decay_all for each in (paper, *ablations))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_recipe(preset):
    assert resolve(preset).preset == preset


def test_the_command_line_counts_more_than_the_file_and_the_file_more_than_the_recipe(tmp_path):
    (tmp_path / "a.toml").write_text('recipe = "tiny"\npeak_lr = 1e-3\nseed = 7\ntokens = "3M"\n')
    recipe = resolve("gdn-nano", None, read_settings(tmp_path / "a.toml"), {"seed": "8"})
    assert (recipe.preset, recipe.length) == ("gdn-nano", resolve("gdn-tiny").length)
    assert (recipe.peak_lr, recipe.seed, recipe.tokens) == (1e-3, 8, 3_000_000)
    assert resolve(None, None, {"preset": "gdn-h1-nano"}).preset == "gdn-h1-nano"


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("tokens", "100B", 10**11),
        ("tokens", 1e9, 10**9),
        ("batch_tokens", "0.5M", 2**19),
        ("length", "4K", 4096),
        ("length", "4_096", 4096),
        ("seed", "0", 0),
    ],
)
def test_whole_numbers_may_have_a_unit(name, text, number):
    recipe = resolve("gdn-nano", None, {"batch_tokens": 2**15, name: text})
    assert getattr(recipe, name) == number


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peak_rl": 1.0}, "setting is 'peak_rl', expected perhaps peak_lr"),
        ({"batch_tokens": 500_000}, "batch_tokens is 500000, expected a multiple of length, 256: 499968 or 500224"),
        ({"tokens": "many"}, "tokens has 'many', expected a number such as 15B or 300M"),
        ({"length": 1.5}, "length is 1.5, expected a whole number"),
        ({"dtype": "bf16"}, "dtype is 'bf16', expected perhaps bfloat16"),
        ({"warmup_tokens": "5M"}, "warmup_tokens is 5000000, expected less than tokens, 4000000"),
        ({"compile": "yes"}, "compile is 'yes', expected true or false"),
        ({"peak_lr": "high"}, "peak_lr is 'high', expected a number"),
        ({"clip": 0}, "clip is 0.0, expected more than 0"),
        ({"preset": "gdn-nanno"}, "preset is 'gdn-nanno', expected perhaps gdn-nano"),
        ({"recipe": "papre-1.3b"}, "recipe is 'papre-1.3b', expected perhaps paper-1.3b"),
    ],
)
def test_a_mistake_is_an_error_with_what_was_perhaps_meant(values, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        resolve(None, None, {"preset": "gdn-nano"}, values)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_own_warmup_fits_any_number_of_tokens(name):
    whole = resolve("gdn-nano", name)
    assert whole.warmup_tokens == int(from_values({**RECIPES[name], "preset": "gdn-nano"}).warmup_tokens)
    assert resolve("gdn-nano", name, {"tokens": "200B"}).warmup_tokens == whole.warmup_tokens
    assert [resolve("gdn-nano", name, {"tokens": n}).warmup_tokens for n in (1, 77, "10K")] == [0, 7, 1000]


def test_a_warmup_that_was_given_is_kept_or_refused(tmp_path):
    assert resolve("gdn-nano", None, {"warmup_tokens": "90K"}, {"tokens": "100K"}).warmup_tokens == 90_000
    (tmp_path / "a.toml").write_text('warmup_tokens = "0.1M"\n')
    with pytest.raises(ValueError, match="warmup_tokens is 100000, expected less than tokens, 100000"):
        resolve("gdn-nano", None, read_toml(tmp_path / "a.toml"), {"tokens": "100K"})


def test_a_recipe_written_as_toml_is_read_back(tmp_path):
    recipe = resolve("gdn-tiny", None, {"sample_prompt": '"\\ \n\x7f\t # α 😀', "peak_lr": 1e-7, "compile": True})
    (tmp_path / "recipe.toml").write_text(as_toml(recipe), encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.toml") == recipe


def test_what_may_change_in_a_run_are_settings():
    assert set(CHANGEABLE) <= set(meanings())


def test_every_setting_says_what_it_means():
    assert list(meanings()) == [field.name for field in fields(Recipe)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "gdn-tinny"], "perhaps gdn-tiny"),
        (["train"], "expected a preset such as gdn-tiny, or a recipe: paper-1.3b"),
        (["train", "--config", "missing.toml"], "No such file or directory: missing.toml"),
        (["train", "--resume", "/nowhere"], "no recipe.toml in /nowhere"),
        (["train", "gdn-nano", "--resume", "/nowhere"], "expected no preset"),
        (["train", "gdn-nano", "--data", "/nowhere", "--out", "runs/never"], "/nowhere names no file to read"),
    ],
)
def test_the_command_answers_a_mistake_in_one_line(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "runs" / "never").exists()


def test_toml_with_a_mistake_is_named(tmp_path):
    (tmp_path / "a.toml").write_text("peak_lr = \n")
    with pytest.raises(ValueError, match=r"a\.toml is not TOML"):
        read_recipe(tmp_path / "a.toml")


def test_recipes_are_valid():
    for name in RECIPES:
        resolve("gdn-nano", name)


def test_every_public_name_is_there():
    for package in (train, data, interop):
        assert all(getattr(package, name) is not None for name in package.__all__)
