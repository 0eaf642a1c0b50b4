import json
from dataclasses import replace

import pytest
from toy_scale import TOY, here

from gated_deltanet import cli
from gated_deltanet.reproduce import cells, experiment, reproduce, systems
from gated_deltanet.reproduce.cells import speed, tasks, taught
from gated_deltanet.reproduce.cells.taught import LESSONS
from gated_deltanet.synthetic.tasks import TASKS


def test_every_target_runs_and_has_a_page(data, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ProcessPoolExecutor", here)
    monkeypatch.setattr(experiment, "FEW", 1)
    monkeypatch.setattr(systems, "TEXT", ("gdn", "mamba2"))
    monkeypatch.setattr(systems, "ABLATIONS", {name: systems.ABLATIONS[name] for name in ("naive Delta Rule",)})
    monkeypatch.setattr(tasks, "MQAR_STEPS", 1)
    monkeypatch.setattr(taught, "STEPS", 1)
    for name, lesson in LESSONS.items():
        monkeypatch.setitem(LESSONS, name, lesson._replace(rates=dict.fromkeys(("gdn", "mamba2"), 1e-3)))
    monkeypatch.setattr(experiment, "MQAR_STATES", (1024,))
    monkeypatch.setattr(experiment, "MQAR_MODELS", ("gdn",))
    monkeypatch.setattr(speed, "SHAPES", ((16, 2), (32, 1)))
    monkeypatch.setattr(speed, "PAPER", ("gdn",))
    for name, task in TASKS.items():
        monkeypatch.setitem(TASKS, name, task._replace(steps=1, trained=task.trained[:1], scored=task.scored[:1]))
    told, scale = [], replace(TOY, seeds=1)
    judged = reproduce(
        "all", data_dir=data, out=tmp_path / "out", work=tmp_path / "work", scale=scale, tell=told.append
    )
    assert len(told) == len(experiment.cells_of("all", scale)) == len(list((tmp_path / "out/cells").iterdir()))
    assert told[-1].startswith(f"{len(told)} of {len(told)}: speed 0")
    assert {claim["verdict"] for claim in judged} == {None}  # of one seed
    for target in experiment.TARGETS:
        assert f"gdn reproduce {target}" in (tmp_path / "out" / target / "README.md").read_text()
        assert (tmp_path / "out" / target / "figure.png").stat().st_size > 5000
        assert json.loads((tmp_path / "out" / target / "numbers.json").read_text())[0]["numbers"]
    assert reproduce("all", out=tmp_path / "out", scale=scale) == judged  # from the cells alone


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "target is 'table9', expected perhaps"),
        (["table3", "--jobs", "0"], "--jobs is 0, expected 1 or more"),
        (["table3", "--data-dir", "nowhere"], "--data-dir is nowhere, expected a folder"),
        (["pilot"], "--data-dir is not given, expected the folder of texts on which the pilot trains"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert cli.main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_plan_counts_runs_and_hours(tmp_path, capsys):
    assert cli.main(["reproduce", "all", "--plan", "--json", "--out", str(tmp_path)]) is None
    plans = {each["target"]: each for each in json.loads(capsys.readouterr().out)}
    assert plans["table3"]["cells"] == 11 * 8 + 2 * 8 + 4
    assert plans["table3"]["left"] == 11 * 4 + 2 * 4 + 4
    assert plans["table3"]["tokens"] == plans["table3"]["left"] * 4_000_000
    assert plans["table1"]["tokens"] == 0
