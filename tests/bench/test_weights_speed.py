from importlib import import_module

import pytest

from gated_deltanet.bench import weights
from gated_deltanet.bench.figures import draw_weights
from gated_deltanet.cli.bench_weights import table_of


def test_every_format_is_measured_beside_what_memory_allows(monkeypatch, tmp_path):
    module = import_module("gated_deltanet.bench.weights")
    for name, value in (("SHAPE", (1024, 512)), ("STEPS", 2), ("CONTEXT", 4)):
        monkeypatch.setattr(module, name, value)
    document = weights(("dense", "int8"), prefill=[3], batches=[1, 2], rounds=1, layers=1)
    assert [(row["work"], row["who"]) for row in document["rows"]] == [
        (work, who) for work in ("prefill 3", "decode, batch 1", "decode, batch 2") for who in ("dense", "int8")
    ]
    dense, int8 = document["rows"][2:4]
    assert dense["times_dense"] == 1
    assert int8["weight_bytes"] < dense["weight_bytes"] / 3
    assert int8["share_of_memory_floor"] > 0
    assert [row["who"] for row in document["products"]] == ["dense", "int8"]
    draw_weights(document, tmp_path / "weights.png")
    _, columns, rows = table_of(document)
    assert {len(row) for row in rows} == {len(columns)}
    assert (tmp_path / "weights.png").stat().st_size > 1000


def test_unknown_formats_are_named():
    with pytest.raises(ValueError, match="--who: 'int3', expected some of dense, float32"):
        weights(["int3"])
    with pytest.raises(ValueError, match="--rounds: 0, expected at least 1"):
        weights(["int8"], rounds=0)
