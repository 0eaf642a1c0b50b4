import pytest
from small import VALUES, gdn, losses, options, write_texts

from gated_deltanet import cli
from gated_deltanet.data import tokenizer
from gated_deltanet.data.prepare import prepare

QUICK = VALUES | {"tokens": 192 * 4, "validate_every": 100}


@pytest.fixture
def data(tmp_path):
    return write_texts(tmp_path / "texts")


def train(*args: object, **settings) -> int | None:
    return cli.main(gdn("train", *args, *options(**settings))[3:])


def test_progress_is_told_in_lines_where_there_is_no_terminal(data, tmp_path, capsys):
    assert train("gdn-nano", **QUICK, data=data, out=tmp_path / "run") is None
    out, said = capsys.readouterr()
    assert all(word in said for word in ("step 4/4", "loss ", "tokens/s", "MFU ", " GiB", " left", "bits/byte"))
    assert f"gdn generate {tmp_path / 'run'}" in out


def test_the_recipe_of_a_run_makes_the_same_run_again(data, tmp_path):
    assert train("gdn-nano", **QUICK, data=data, out=tmp_path / "first") is None
    assert train(config=tmp_path / "first" / "recipe.toml", out=tmp_path / "second") is None
    assert losses(tmp_path / "second") == losses(tmp_path / "first")


def test_a_run_is_taken_up_from_another_directory(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train("gdn-nano", **QUICK, data="texts", out="run") is None
    monkeypatch.chdir("/")
    assert train(resume=tmp_path / "run") is None


def test_prepared_data_trains_as_the_texts_do_and_a_damaged_shard_is_an_error(data, tmp_path, capsys):
    prepare(str(data), tokenizer.get("bytes"), tmp_path / "prepared", valid=0.2)
    assert train("gdn-nano", **QUICK, data=data, out=tmp_path / "texts-run") is None
    assert train("gdn-nano", **QUICK, data=tmp_path / "prepared", out=tmp_path / "run") is None
    assert losses(tmp_path / "run") == losses(tmp_path / "texts-run")
    shard = next((tmp_path / "prepared").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])
    capsys.readouterr()
    assert train("gdn-nano", **QUICK, data=tmp_path / "prepared", out=tmp_path / "other") == 2
    error = capsys.readouterr().err
    assert str(shard) in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "other").exists()


def test_documents_that_are_skipped_are_told_in_one_line(data, tmp_path, capsys):
    (data / "bad.txt").write_bytes(b"\xff\xfe")
    assert train("gdn-nano", **QUICK, data=data, out=tmp_path / "run") is None
    assert f"gdn: warning: documents skipped in {data}: 1 invalid UTF-8" in capsys.readouterr().err


def test_divergence_is_told_in_one_line(data, tmp_path, capsys):
    changes = {"peak_lr": 1e30, "warmup_tokens": 0, "bad_steps": 2, "tokens": 192 * 10}
    assert train("gdn-nano", **QUICK | changes, data=data, out=tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "is skipped, nonfinite" in error
    assert "gdn: error: 2 steps in a row" in error.splitlines()[-1]
