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


def test_stock_and_accelerated_stand_beside_each_other():
    document = bench(["qwen3.5"], dtypes=["float32"], rounds=1, layers=4)
    assert [row["who"] for row in document["rows"]] == ["stock", "accelerated"] * 4
    assert all(row["tokens_per_second"] > 0 for row in document["rows"])
    stock, ours = document["rows"][:2]
    assert stock["times_stock"] == 1
    assert ours["times_stock"] == pytest.approx(stock["seconds"] / ours["seconds"])
    with pytest.raises(ValueError, match="--work: 'sleep', expected some of prefill 512"):
        bench(work=["sleep"])


def test_a_measurement_goes_on_in_its_folder(tmp_path, capsys):
    for work in ("decode", "prefill 512"):
        options = ["--dtypes", "float32", "--work", work, "--rounds", "1", "--layers", "4", "--out", str(tmp_path)]
        main(["bench", "transformers", "qwen3.5", *options])
    rows = json.loads((tmp_path / "transformers.json").read_text())["rows"]
    assert [row["work"] for row in rows] == ["decode", "decode", "prefill 512", "prefill 512"]
    assert "prefill 512" in (tmp_path / "transformers.md").read_text()
    assert "× stock" in capsys.readouterr().out
