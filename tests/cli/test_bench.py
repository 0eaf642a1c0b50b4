import json
import shlex
from importlib import import_module
from typing import Any

import pytest
import torch

from gated_deltanet import cli, matmul
from gated_deltanet.bench import op_baselines, timing
from gated_deltanet.cli.bench import Accuracy
from gated_deltanet.cli.bench_op import Op
from gated_deltanet.cli.output import write_document

accuracy: Any = import_module("gated_deltanet.bench.accuracy")  # the modules: their functions have the same names
op: Any = import_module("gated_deltanet.bench.op")
OP = shlex.split("bench op --quick --seconds 0 --lengths 1 3 --heads 2 --d-k 4 --d-v 6 --dtypes float32")
OP += ["--backends", "chunkwise"]


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


def test_length_must_be_positive(capsys):
    assert cli.main(["bench", "accuracy", "--length", "0"]) == 2
    assert "--length is 0, expected at least 1" in capsys.readouterr().err


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(timing, "TURN", 0)
    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(matmul, "SIZE", 16)
    monkeypatch.setattr(op_baselines, "flex_compiles", lambda: False)  # it takes seconds
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # the cores are taken by other tests


@pytest.mark.usefixtures("hurry")
def test_op_prints_tables_and_writes_the_document(capsys, tmp_path):
    file = tmp_path / "op.json"
    assert cli.main([*OP, "--threads", "2", "--peers", "--out", str(file)]) is None
    out = capsys.readouterr().out
    assert all(
        title in out
        for title in ("Gated delta rule", "odd heads", "One thread against all", "A long sequence", "selective scan")
    )
    assert all(text in out for text in ("step_", "chunkwise", "GFLOP/s", "speed-up", "cost", "reading", "× sdpa"))
    document = json.loads(file.read_text())
    assert [*tmp_path.iterdir()] == [file]
    assert document.keys() == {"machine", "date", "load", "peers", "settings", "rows"}
    assert document["settings"]["lengths"] == [1, 3]
    assert {row["table"] for row in document["rows"]} == {*op.TABLES}


@pytest.mark.usefixtures("hurry")
def test_op_as_json_is_one_document(capsys, monkeypatch):
    monkeypatch.setattr(op.memory, "peak_bytes", lambda call: None)
    cli.main([*OP, "--tables", "lengths", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0].keys() >= {"who", "what", "dtype", "L", "us", "gflops", "share_of_sgemm", "times_faster_than"}
    assert rows[0]["peak_bytes"] is None


@pytest.mark.usefixtures("hurry")
def test_op_says_what_was_left_out(capsys, monkeypatch):
    monkeypatch.setattr(op, "too_large", lambda entry, earlier: "too big" if entry.L > 1 else None)
    cli.main([*OP, "--tables", "lengths"])
    assert "Left out: chunkwise, forward, float32, L = 3: too big." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtypes", "float17"], "--dtypes has float17, expected some of: float32, bfloat16"),
        (["--lengths", "0"], "--lengths has 0, expected at least 1"),
        (["--out", "op.md"], "--out is op.md, expected a name that ends with .json"),
        (["--out", "no/such/folder/op.json"], "--out is no/such/folder/op.json, expected a file in a folder"),
    ],
)
def test_op_refuses_before_it_measures(options, message, capsys):
    assert cli.main([*OP, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_document_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.json"
    write_document(file, {"a": 1})
    with pytest.raises(TypeError):
        write_document(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("verb", [Accuracy, Op])
def test_example_in_the_help_parses(verb):
    *_, example = verb.__doc__.strip().splitlines()
    assert isinstance(cli.parse(shlex.split(example)[2:]).verb, verb)
