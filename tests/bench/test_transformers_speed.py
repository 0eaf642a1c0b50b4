"""`gdn bench transformers` on a toy: rows that say what they should, and measurements that go on."""

import importlib
import json

import pytest

from gated_deltanet.bench import transformers as bench
from gated_deltanet.cli import main

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    module = importlib.import_module("gated_deltanet.bench.transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 40, "vocab_size": 97, "linear_num_key_heads": 2}
    sizes |= {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 16}
    monkeypatch.setattr(module, "MODELS", {name: (kind, x | sizes) for name, (kind, x) in module.MODELS.items()})
    monkeypatch.setattr(module, "WORK", dict.fromkeys(module.WORK, 9))
    monkeypatch.setattr(module.llama, "installed", lambda: False)


def test_stock_and_accelerated_stand_beside_each_other():
    document = bench(["qwen3.5"], dtypes=["float32"], rounds=1, layers=4)
    assert [row["who"] for row in document["rows"]] == ["stock", "accelerated"] * 4
    assert all(row["tokens_per_second"] > 0 for row in document["rows"])
    stock, ours = document["rows"][:2]
    assert stock["times_stock"] == 1
    assert ours["times_stock"] == pytest.approx(stock["seconds"] / ours["seconds"])
    with pytest.raises(ValueError, match="--work: 'sleep', expected some of prefill 512"):
        bench(work=["sleep"])
    with pytest.raises(ValueError, match="--layers is 13, expected 1 to 12"):
        bench(layers=13)


class Llama:
    """What is asked of llama.cpp."""

    def __init__(self):
        self.read = []

    def reset(self):
        self.read = []

    def eval(self, tokens):
        self.read += tokens


def test_llama_cpp_takes_its_turns_where_it_is_installed(monkeypatch, capsys):
    llama = Llama()
    module = importlib.import_module("gated_deltanet.bench.transformers")
    monkeypatch.setattr(module.llama, "installed", lambda: True)
    monkeypatch.setattr(module.llama, "load", lambda model, dtype, context: llama)
    main(["bench", "transformers", "--dtypes", "float32", "--rounds", "1", "--layers", "4", "--json"])
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["who"] == "llama.cpp"]
    assert [(row["model"], row["work"]) for row in rows] == [
        ("qwen3.5", work) for work in ("prefill 512", "prefill 4096", "decode")
    ]
    assert all(row["tokens_per_second"] > 0 and row["peak_bytes"] is None for row in rows)
    assert len(llama.read) == 9 + 9  # decoding is timed last: the prompt, and as many of its tokens again


@pytest.mark.slow
def test_llama_cpp_reads_what_is_measured(monkeypatch):
    pytest.importorskip("llama_cpp", reason="llama_cpp is not installed: make test-llama compiles it")
    monkeypatch.undo()  # heads of the real sizes
    document = bench(["qwen3.5"], dtypes=["float32", "bfloat16"], work=["prefill 512"], rounds=1, layers=4)
    assert [row["who"] for row in document["rows"]] == ["stock", "accelerated", "llama.cpp"] * 2


def test_a_measurement_goes_on_in_its_folder(tmp_path, capsys):
    for work in ("decode", "prefill 512"):
        options = ["--dtypes", "float32", "--work", work, "--minutes", "0", "--layers", "4", "--out", str(tmp_path)]
        main(["bench", "transformers", "qwen3.5", *options])
    rows = json.loads((tmp_path / "transformers.json").read_text())["rows"]
    assert [row["work"] for row in rows] == ["prefill 512", "prefill 512", "decode", "decode"]
    assert "prefill 512" in (tmp_path / "transformers.md").read_text()
    assert "× stock" in capsys.readouterr().out
