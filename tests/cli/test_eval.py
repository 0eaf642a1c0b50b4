import pytest

from gated_deltanet import cli


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--suite", "comonsense"], "expected perhaps commonsense"),
        (["--limit", "0"], "--limit is 0"),
        (["--max-length", "1"], "--max-length is 1"),
        (["--data-dir", "nowhere"], "--data-dir is nowhere"),
        (["--out", "pyproject.toml"], "--out is pyproject.toml"),
    ],
)
def test_options_are_checked_before_the_work(options, message, capsys):
    assert cli.main(["eval", "runs/none", *options]) == 2
    assert message in capsys.readouterr().err


def test_without_lm_eval_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("gated_deltanet.cli.suites.commonsense.find_spec", lambda name: None)
    assert cli.main(["eval", "runs/none"]) == 2
    assert "pip install 'gated-deltanet[eval]'" in capsys.readouterr().err
