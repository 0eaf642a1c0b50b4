import json

import pytest

from gated_deltanet import cli
from gated_deltanet.data.shards import open_corpus


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(30):
        (tmp_path / "texts" / f"{i}.txt").write_text(f"the {i}th text, " * 50)
    (tmp_path / "texts" / "empty.txt").write_text("")
    return str(tmp_path / "texts")


def told(capsys, *args) -> dict:
    assert cli.main([*args, "--json"]) is None
    return json.loads(capsys.readouterr().out)


def test_tokenizer_is_trained_and_text_prepared_with_it(texts, tmp_path, capsys):
    file, out = str(tmp_path / "tokenizer.json"), str(tmp_path / "out")
    made = told(capsys, "tokenizer", "train", texts, "--vocab-size", "280", "--out", file)
    assert (made["vocab_size"], made["documents"], made["skipped"]) == (280, 30, {"empty": 1})
    assert told(capsys, "tokenizer", "show", file, "--text", "the text")["decoded"] == "the text"
    args = ("data", "prepare", texts, "--tokenizer", file, "--out", out, "--valid", "0.2", "--workers", "1")
    summary = told(capsys, *args)
    assert summary["tokenizer"]["fingerprint"] == made["fingerprint"]
    assert summary["skipped"] == {"empty": 1}
    assert summary["train"]["documents"] + summary["valid"]["documents"] == 30
    assert len(open_corpus(out, "valid")) == summary["valid"]["documents"]
    assert told(capsys, "data", "check", out) == summary


def test_tables_tell_counts_and_what_was_skipped(texts, tmp_path, capsys):
    cli.main(["tokenizer", "train", texts, "--vocab-size", "260", "--out", str(tmp_path / "t.json")])
    assert "30 documents" in capsys.readouterr().out
    cli.main(["data", "prepare", texts, "--out", str(tmp_path / "out"), "--workers", "1"])
    out = capsys.readouterr().out
    assert "Skipped: 1 empty." in out
    assert "sha256" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["tokenizer", "train", "absent.txt", "--out", "t.json"], "absent.txt names no file to read"),
        (["tokenizer", "train", "stdlib", "--out", "absent/t.json"], "expected a file in a folder that exists"),
        (["tokenizer", "train", "stdlib", "--out", "t"], "--out is t, expected a name that ends with .json"),
        (["data", "prepare", "absent.txt", "--out", "out"], "absent.txt names no file to read"),
        (["data", "check", "absent"], "no manifest.json in absent"),
    ],
)
def test_mistake_is_one_line(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", [["data", "prepare"], ["data", "check"], ["tokenizer", "train"], ["tokenizer", "show"]]
)
def test_help_ends_with_an_example(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([*verb, "--help"])
    assert f"Example: gdn {' '.join(verb)} " in capsys.readouterr().out
