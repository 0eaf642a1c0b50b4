import json

import pytest

from gated_deltanet import cli
from gated_deltanet.bench import accuracy


@pytest.fixture
def one_measurement(monkeypatch):
    measurements = accuracy.measurements
    monkeypatch.setattr(accuracy, "measurements", lambda L: measurements(L)[:1])


@pytest.mark.usefixtures("one_measurement")
def test_accuracy_prints_a_table_markdown_or_json(capsys):
    cli.main(["bench", "accuracy", "--length", "5"])
    assert "gated_delta_rule" in capsys.readouterr().out
    cli.main(["bench", "accuracy", "--length", "5", "--markdown"])
    assert "| gated_delta_rule | reference | float32 |" in capsys.readouterr().out
    cli.main(["bench", "accuracy", "--length", "5", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["form"] == "reference"
    assert document["machine"]["torch"]["version"]


@pytest.mark.parametrize("command", [["demo"], ["bench", "accuracy"]])
def test_length_must_be_positive(command, capsys):
    assert cli.main([*command, "--length", "0"]) == 2
    assert "--length is 0, expected at least 1" in capsys.readouterr().err


def test_demo_shows_every_form(capsys):
    cli.main(["demo", "--length", "8"])
    out = capsys.readouterr().out
    assert all(form in out for form in ("reference", "parallel", "chunkwise"))
    cli.main(["demo", "--length", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["length"] == 8
