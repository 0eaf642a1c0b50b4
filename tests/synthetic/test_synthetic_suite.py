import json
import math

import pytest
import torch

from gated_deltanet import CausalLM
from gated_deltanet.models import count
from gated_deltanet.synthetic import figure, suite, synthetic, tasks, train
from gated_deltanet.synthetic.batch import NOT_ASKED, Batch
from gated_deltanet.synthetic.models import STATES, architecture
from gated_deltanet.synthetic.suite import Cell
from gated_deltanet.synthetic.tasks import TASKS


def without_time(result):
    return {name: value for name, value in result.items() if name != "seconds"}


def test_architectures_are_compared_in_recall_and_transitions_in_state_tracking():
    cells = suite.cells(["gdn", "mamba2"])
    assert [cell.model for cell in cells if cell.task == "mqar"] == ["gdn", "mamba2"]
    assert [cell.model for cell in cells if cell.task == "parity"] == ["n_h = 1, β ≤ 1", "n_h = 1, β ≤ 2"]
    assert len({str(cell) for cell in cells}) == len(cells)
    with pytest.raises(ValueError, match="architecture is 'mamba3', expected perhaps mamba"):
        suite.cells(["gdn", "mamba3"])


@pytest.mark.parametrize("task", TASKS)
def test_a_cell_is_measured_and_the_same_again(task, monkeypatch):
    monkeypatch.setattr(tasks, "SCORED", 6)
    cell = next(cell for cell in suite.cells(["gdn"]) if cell.task == task)
    result = suite.measure(cell, steps=2)
    assert [point["level"] for point in result["points"]] == list(TASKS[task].scored)
    assert result["steps"] == 2
    assert 0 <= result["accuracy"] <= 100
    assert result["parameters"] == sum(p.numel() for p in CausalLM(cell.config()).parameters())
    assert without_time(suite.measure(cell, steps=2)) == without_time(result)
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("name", ["retnet", "linear-attention", "hgrn2", "mamba", "deltanet", "mamba2"])
def test_states_are_of_one_size(name):
    """But for short convolutions."""
    mixers = architecture(name, 5).mixers
    sizes = [vars(mixer) for mixer in mixers]
    found = [s["d_inner"] * s["d_state"] if "d_inner" in s else s["n_heads"] * s["d_k"] * s["d_v"] for s in sizes]
    assert found == [2048]


def test_a_hybrid_has_a_layer_for_each_mixer():
    assert architecture("gdn-h2", 5).n_layers == 3
    hybrid = architecture("gdn-h1", 5)
    assert count.kv_bytes(hybrid, 1000) == count.kv_bytes(hybrid, STATES[2048].window)


def test_right_counts_what_is_asked_for():
    model = CausalLM(architecture("gdn", 7))
    tokens = torch.arange(35).view(5, 7) % 7
    with torch.no_grad():
        answers = model(tokens)[0].argmax(-1)
    targets = answers.clone()
    targets[:, :3] = NOT_ASKED
    targets[1:3, 4] = (targets[1:3, 4] + 1) % 7
    assert train.right(model, Batch(tokens, targets), rows=2) == (18, 20)


def test_parity_is_learned_with_reflections_and_holds_beyond_the_trained_length(monkeypatch):
    monkeypatch.setattr(tasks, "SCORED", 32)
    result = suite.measure(Cell("parity", "n_h = 1, β ≤ 2"), steps=300)
    for point, least in zip(result["points"], (95, 75, 60), strict=True):  # a guess is right in 50
        assert point["accuracy"] > least


def test_a_model_that_diverges_is_left_out_and_not_scored(monkeypatch, tmp_path):
    monkeypatch.setattr(train, "schedule", lambda step, steps: math.inf)
    result = suite.measure(Cell("mqar", "gdn"), steps=3)
    assert "NaN" in result["left_out"]
    assert "accuracy" not in result
    document = suite.collect([result], seed=0)
    assert document["tasks"]["mqar"]["models"] == {}
    assert suite.notes(document)[0].startswith("Left out: mqar: gdn: ")
    figure.draw(document, tmp_path / "empty.png")


def test_a_limit_is_of_rows_scored_of_each_level():
    result = suite.measure(Cell("copy", "gdn"), steps=1, limit=3)
    assert [point["answers"] for point in result["points"]] == [3 * symbols for symbols in TASKS["copy"].scored]


def test_steps_are_checked():
    with pytest.raises(ValueError, match="steps is 0, expected at least 1"):
        suite.measure(Cell("parity", "n_h = 1, β ≤ 2"), steps=0)


def test_the_suite_is_a_table_and_a_picture(monkeypatch, tmp_path):
    def made_up(cell, *, seed, steps, limit):
        points = [{"level": level, "accuracy": 50.0, "answers": 3} for level in TASKS[cell.task].scored]
        sizes = {"parameters": 70_000, "state_bytes": 8192, "kv_bytes_per_token": 0}
        return cell._asdict() | sizes | {"accuracy": 50.0, "points": points, "steps": steps, "seconds": 2.0}

    monkeypatch.setattr(suite, "measure", made_up)
    shown = []
    result = synthetic(["gdn", "retnet"], steps=7, track=lambda cells, what: shown.extend(cells) or cells)
    document = result.document
    assert shown == suite.cells(["gdn", "retnet"])
    assert document["seconds"] == 2 * len(shown)
    assert json.loads(json.dumps(document)) == document
    for _, columns, lines in (result.table, result.screen):
        assert [line[1] for line in lines] == [cell.model for cell in shown]
        assert {len(line) for line in lines} == {len(columns)}
    result.save(tmp_path)
    assert (tmp_path / "synthetic.png").stat().st_size > 10_000
