import json
import re

import pytest
from toy_scale import TOY, here

from gated_deltanet.reproduce import cells, pilot
from gated_deltanet.reproduce.cells import taught


def test_the_pilot_tries_rates_until_the_best_lies_between(data, tmp_path, monkeypatch):
    losses = {2e-3: 3.0, 4e-3: 2.5, 8e-3: 2.0, 16e-3: 2.2}

    def measured(cell, scale, data_dir, work, out):
        return {"measures": {"validation": {"articles": [[losses[cell.rate], 1]]}}}

    monkeypatch.setattr(pilot, "run_all", lambda todo, place, *_: [(cell, measured(cell, *place)) for cell in todo])
    place = pilot.Place(TOY, data, tmp_path, tmp_path)
    tried = pilot.tune("text", ["gdn"], place, 1, print)["gdn"]
    assert {rate: found["validation loss"] for rate, found in tried.items()} == losses
    assert pilot.best_of("text", tried) == 8e-3


def test_a_pilot_finds_rates_and_what_seeds_can_tell(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pilot, "RATES", (1e-3,))
    monkeypatch.setattr(pilot, "wanted", lambda what, tried: [] if tried else pilot.RATES)
    monkeypatch.setattr(pilot, "SEEDS", (100, 101))
    monkeypatch.setattr(pilot, "SHARE", 1)
    monkeypatch.setattr(cells, "ProcessPoolExecutor", here)
    monkeypatch.setattr(taught, "STEPS", 1)
    told = pilot.pilot(data, out=tmp_path / "out", work=tmp_path / "work", scale=TOY, names=("gdn", "mamba2"))
    assert [told[what]["rates"] for what in pilot.ASKED] == [{"gdn": 1e-3, "mamba2": 1e-3}] * 3
    assert set(told["spread"]) == {"gdn − mamba2"}
    assert len(told["whole"]) == 1
    assert json.loads((tmp_path / "out" / "pilot.json").read_text()) == json.loads(json.dumps(told))
    (line,) = re.findall(r"Recall: .*?\| gdn \| \*\*(\S+)\*\* \|", (tmp_path / "out/README.md").read_text(), re.DOTALL)
    assert float(line) == pytest.approx(told["recall"]["tried"]["gdn"][1e-3]["context gain"], abs=6e-4)
