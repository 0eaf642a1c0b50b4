import json

import pytest

from gated_deltanet import cli, load
from gated_deltanet.demo import job
from gated_deltanet.demo.page import page
from gated_deltanet.train.recipes import resolve


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.py").write_text(f"def f{i}(x):\n    return x + {i}\n" * 10)
    settings = {"data": str(folder), "tokenizer": "bytes", "valid": 0.2}
    monkeypatch.setattr(job, "resolve", lambda preset, name, given: resolve(preset, name, settings, given))


@pytest.mark.usefixtures("small_corpus")
def test_demo_trains_compares_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--minutes", "1e-6", "--json"]) is None
    result = json.loads(capsys.readouterr().out)
    assert result["bits"].keys() == {"this model", "gzip −9", "n-gram"}
    assert result["sample"].startswith(job.PROMPT)
    assert load("runs/demo").config.d_model == 128
    text = (tmp_path / result["report"]).read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "gdn generate runs/demo" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_a_second_demo_leaves_the_first_alone(tmp_path):
    from gated_deltanet.cli.demo import free

    assert free(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    assert free(tmp_path / "demo") == tmp_path / "demo-2"


def test_page_escapes_what_the_model_writes():
    text = page({"a": "<b>"}, {"m": 1.0}, ("<i>", "<script>alert(1)</script>"), {"t": b"png"}, ["x < y"])
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "x &lt; y" in text


def test_minutes_must_be_positive(capsys):
    assert cli.main(["demo", "--minutes", "0"]) == 2
    assert "--minutes is 0.0, expected more than 0" in capsys.readouterr().err
