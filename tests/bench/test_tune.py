"""`gdn tune` without a GPU: the search, the file, and that it is used. Times and results are made up."""

import json
from importlib import import_module
from math import inf
from typing import Any

import pytest
import torch

from gated_deltanet import cli
from gated_deltanet.ops import gpu
from gated_deltanet.ops.gated_delta_rule import tuned_tiles
from gated_deltanet.ops.gated_delta_rule.triton_tiles import tiles

tune: Any = import_module("gated_deltanet.bench.tune")  # the module: its function has the same name


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned_tiles, "FILE", tmp_path / "cache" / "tiles.json")
    tuned_tiles.tuned.cache_clear()
    yield tuned_tiles.FILE
    tuned_tiles.tuned.cache_clear()


def made_up(inputs, name, candidate, seconds, expected):
    """Chunks of 32 do not fit; the fastest has columns of 64 and state_pass with 2 warps and 3 stages."""
    if candidate.C == 32:
        return inf
    options = candidate.options("state_pass")
    slow = (candidate.columns != 64) + (options["num_warps"] != 2) + (options["num_stages"] != 3)
    return 1e-3 * (1 + slow)


@pytest.fixture
def pretended_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "unusable", lambda: None)
    monkeypatch.setattr(gpu, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(tune, "inputs_of", lambda *sizes: {})
    monkeypatch.setattr(tune, "results", lambda *call: [])
    monkeypatch.setattr(tune, "seconds_of", made_up)


@pytest.mark.usefixtures("pretended_gpu")
def test_the_fastest_tiles_are_found_written_and_used(file, capsys):
    assert cli.main(["tune", "--d-k", "128", "--d-v", "96"]) is None
    out = " ".join(capsys.readouterr().out.split())
    assert "sm_90 bfloat16 128x96, Some GPU: " in out
    assert "1.000 ms with the tuned" in out
    tuned_tiles.tuned.cache_clear()  # as in the next process
    found = tuned_tiles.tiles_for(128, 96, torch.bfloat16, "sm_90")
    assert found.columns == 64
    assert found.options("state_pass") == {"num_warps": 2, "num_stages": 3}
    fixed = tiles(128, 96, torch.bfloat16, "sm_90")
    assert found.C == fixed.C
    assert tuned_tiles.tiles_for(128, 96, torch.float16, "sm_90") == tiles(128, 96, torch.float16, "sm_90")


@pytest.mark.usefixtures("pretended_gpu")
def test_another_search_is_written_beside_the_first(file):
    tune.tune(d_k=128, d_v=128)
    tuned_tiles.tuned.cache_clear()
    tune.tune(d_k=64, d_v=64)
    assert set(json.loads(file.read_text())["tiles"]) == {"sm_90 bfloat16 128x128", "sm_90 bfloat16 64x64"}


def test_without_a_gpu_it_is_refused_and_nothing_is_written(monkeypatch, file, capsys):
    monkeypatch.setattr(gpu, "unusable", lambda: gpu.NO_GPU)
    assert cli.main(["tune"]) == 2
    assert "torch finds no GPU (CUDA or ROCm). The fixed tiles are used" in capsys.readouterr().err
    assert not file.parent.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"tiles": {"x": {"C": 64}}}', '{"tiles": 3}'])
def test_a_file_that_holds_no_tiles_is_named(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=r"tiles\.json holds no tiles .*: delete it, or make it anew with gdn tune"):
        tuned_tiles.tuned()


def test_a_size_that_is_none_is_refused():
    entry = tiles(64, 64, torch.bfloat16, "sm_90")._asdict()
    assert tuned_tiles.checked(entry).C == 64
    with pytest.raises(ValueError, match="'64' is no size"):
        tuned_tiles.checked(entry | {"C": "64"})


def test_tiles_in_use_are_those_of_the_trial_and_then_the_old_ones():
    name, fixed = tuned_tiles.key(64, 64, torch.bfloat16, "sm_90"), tiles(64, 64, torch.bfloat16, "sm_90")
    with tuned_tiles.using(name, fixed._replace(columns=16)):
        assert tuned_tiles.tiles_for(64, 64, torch.bfloat16, "sm_90").columns == 16
    assert tuned_tiles.tiles_for(64, 64, torch.bfloat16, "sm_90") == fixed
