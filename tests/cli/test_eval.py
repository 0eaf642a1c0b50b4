import json
from pathlib import Path

import pytest
from tiny_models import make

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--suite", "comonsense"], "expected perhaps commonsense"),
        (["--limit", "0"], "--limit is 0"),
        (["--steps", "0"], "--steps is 0"),
        (["--max-length", "1"], "--max-length is 1"),
        (["--data-dir", "nowhere"], "--data-dir is nowhere"),
        (["--out", "pyproject.toml"], "--out is pyproject.toml"),
        (["--device", "abacus"], "--device is 'abacus'"),
    ],
)
def test_options_are_checked_before_the_work(options, message, capsys):
    assert cli.main(["eval", "runs/none", *options]) == 2
    assert message in capsys.readouterr().err


def test_several_suites_go_on_without_the_one_that_fails(tmp_path, capsys):
    save(CausalLM(get_preset("gdn-nano")), tmp_path / "model", tokenizer=byte_tokenizer())
    options = ["--lengths", "1K", "--limit", "1", "--max-length", "4096", "--out", str(tmp_path / "out"), "--json"]
    (tmp_path / "data").mkdir()
    several = ["--suite", "extrapolation,needle", "--data-dir", str(tmp_path / "data")]
    assert cli.main(["eval", str(tmp_path / "model"), *several, *options]) is None
    said = capsys.readouterr()
    assert "gdn: extrapolation was left out: nothing could be evaluated: no document in" in said.err
    assert set(json.loads(said.out)) == {"needle", "left_out"}
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.startswith("## needle")
    assert "![needle](needle.png)" in report
    assert "## extrapolation\n\nLeft out: nothing could be evaluated" in report


def test_without_lm_eval_the_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # where there is no folder runs, so that runs/none may be a name on the hub
    monkeypatch.setattr("gated_deltanet.cli.eval.find_spec", lambda name: None)
    monkeypatch.setattr("gated_deltanet.data.reach.reachable", lambda: True)
    assert cli.main(["eval", "runs/none"]) == 2
    assert "pip install 'gated-deltanet[eval]'" in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["commonsense", "needle", "extrapolation", "all"])
def test_a_checkpoint_that_is_none_is_named(suite, tmp_path, capsys, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    wrong = {
        str(tmp_path): f"no config.json in {tmp_path}",
        str(tmp_path / "none"): f"there is no folder {tmp_path / 'none'}",
        "gdn-nano": "gdn-nano is a preset",
        "tests/none": "there is no folder tests/none",
    }
    monkeypatch.chdir(Path(__file__).parents[2])
    for checkpoint, message in wrong.items():
        assert cli.main(["eval", checkpoint, "--suite", suite]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{")
    assert cli.main(["eval", str(tmp_path), "--suite", suite]) == 2
    assert "config.json is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["commonsense", "needle", "extrapolation"])
def test_a_checkpoint_without_tokenizer_is_named(suite, tmp_path, capsys):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    save(CausalLM(get_preset("gdn-nano")), tmp_path)
    assert cli.main(["eval", str(tmp_path), "--suite", suite]) == 2
    assert "expected the folder of a model saved with its tokenizer" in capsys.readouterr().err
    make("gpt2").save_pretrained(tmp_path / "other")
    assert cli.main(["eval", str(tmp_path / "other"), "--suite", suite]) == 2
    assert f"no tokenizer in {tmp_path / 'other'}" in capsys.readouterr().err
