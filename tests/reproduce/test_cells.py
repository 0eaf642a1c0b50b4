import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from toy_scale import TOY, here

from gated_deltanet.reproduce import cells, experiment
from gated_deltanet.reproduce.cells import corpus, speed, tasks
from gated_deltanet.reproduce.cells.speed import SpeedCell
from gated_deltanet.reproduce.cells.tasks import MqarCell, TaskCell
from gated_deltanet.reproduce.cells.text import TextCell, command
from gated_deltanet.reproduce.scales import SCALES, Scale
from gated_deltanet.train import loop, resolve
from gated_deltanet.train.data import is_prepared


def test_a_cell_is_its_file_and_is_found_again(found):
    measured, folder = found
    assert json.loads((folder / "cells/gdn-3.json").read_text()) == measured
    assert cells.find(TextCell("gdn", 3), TOY, folder / "cells") == measured
    assert cells.find(TextCell("gdn", 4), TOY, folder / "cells") is None
    other = Scale("nano", 300, tokens=4096, length=256, batch_tokens=512, peak_lr=4e-3, limit=2)
    assert cells.find(TextCell("gdn", 3), other, folder / "cells") is None


def test_a_cell_repeats_to_the_same_numbers(found, data, tmp_path):
    measured, _ = found
    again = cells.run(TextCell("gdn", 3), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert again["measures"] == measured["measures"]
    assert again["hash"] == measured["hash"]


def test_cells_side_by_side_make_their_texts_once_whole(data, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(corpus.make, data, tmp_path / "texts", TOY.tokens, TOY.vocab_size) for _ in range(2)]
    assert [each.result() for each in made] == [tmp_path / "texts"] * 2
    assert is_prepared(tmp_path / "texts")
    assert list(tmp_path.iterdir()) == [tmp_path / "texts"]


def test_a_run_that_was_stopped_is_named_and_goes_on(found, data, tmp_path, monkeypatch):
    measured, _ = found
    monkeypatch.setattr(loop, "asked_to_stop", lambda: nullcontext(lambda: True))
    with pytest.raises(InterruptedError, match=r"gdn-3-\w+ was stopped after step 1 of 4; the same command goes on"):
        cells.run(TextCell("gdn", 3), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert not (tmp_path / "cells").exists()
    monkeypatch.undo()
    again = cells.run(TextCell("gdn", 3), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert again["measures"] == measured["measures"]


def test_after_one_that_fails_no_other_is_begun(data, tmp_path, monkeypatch):
    begun = []

    def fail(cell, *_):
        begun.append(cell.seed)
        raise InterruptedError

    monkeypatch.setattr(cells, "ProcessPoolExecutor", here)
    monkeypatch.setattr(cells, "run", fail)
    with pytest.raises(InterruptedError):
        list(cells.run_all([TextCell("gdn", seed) for seed in range(9)], TOY, data, tmp_path, tmp_path, jobs=1))
    assert begun == [0]


def test_an_ablation_has_its_validation_loss_only(data, tmp_path):
    cell = TextCell("without Short Conv", 0, measured=False)
    measured = cells.run(cell, TOY, data, tmp_path / "work", tmp_path / "cells")
    assert list(measured["measures"]) == ["validation"]
    assert measured["settings"]["model"]["mixers"][0]["conv_size"] is None


def test_a_synthetic_cell_that_diverges_is_named_and_has_no_score(data, tmp_path, monkeypatch):
    monkeypatch.setattr("gated_deltanet.synthetic.train.schedule", lambda step, steps: math.inf)
    with pytest.raises(ValueError, match=r"rewriting: gdn, seed 0, has no score: .*NaN"):
        cells.run(TaskCell("rewriting", "gdn", 0), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert not (tmp_path / "cells").exists()


def test_mqar_takes_the_best_of_three_rates(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MQAR_STEPS", 2)
    found = cells.run(MqarCell("deltanet", 1024, 0), TOY, data, tmp_path / "work", tmp_path / "cells")
    measures = found["measures"]
    assert found["system"] == "mqar: deltanet; 1024"
    assert set(measures["by_rate"]) == {"0.001", "0.003", "0.01"}
    assert measures["accuracy"] == measures["by_rate"][str(measures["rate"])]
    assert [point["level"] for point in measures["points"]] == [16, 32, 64]


def test_a_round_of_speeds_is_a_cell_of_each_system(data, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "PAPER", ("gdn", "samba"))
    monkeypatch.setattr(speed, "SHAPES", ((16, 2), (32, 1)))
    found = cells.run(SpeedCell(0), TOY, data, tmp_path / "work", tmp_path / "cells")
    parts = {each["system"]: each for each in experiment.by_system(found)}
    assert len(parts) == 2
    assert set(parts["speed: gdn"]["measures"]["tokens_per_second"]) == {"16", "32"}
    assert sum(each["seconds"]["measuring"] for each in parts.values()) == pytest.approx(found["seconds"]["measuring"])


def test_the_papers_scale_trains_with_torchrun(data, tmp_path):
    run = command(TextCell("gdn", 3), SCALES["1.3b"], data, tmp_path)
    assert run[1:3] == ["-m", "torch.distributed.run"]
    assert run[run.index("--recipe") + 1] == "paper-1.3b"
    model = json.loads(Path(run[run.index("--model") + 1]).read_text())
    assert model["d_model"] == 2400
    assert run[run.index("--seed") + 1] == "3"
    recipe = resolve(None, "paper-1.3b", {"model": run[run.index("--model") + 1]})
    assert recipe.tokens == 100 * 10**9


def test_every_number_of_a_cell_is_there(found):
    measures = found[0]["measures"]
    assert set(measures) == {"validation", "pairs", "positions", "far_afresh"}
    assert all(n > 0 for text in measures["validation"].values() for _, n in text)
    assert len(measures["positions"]["PG19"]) == 20
