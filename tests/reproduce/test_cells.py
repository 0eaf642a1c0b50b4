import json
import math
import random

import pytest
from tiny_sets import LONGBENCH_ROWS, write_longbench, write_recall, write_rows, write_text

from gated_deltanet import cli
from gated_deltanet.eval.longbench import MINI
from gated_deltanet.reproduce import cells, needles
from gated_deltanet.reproduce.cells import Cell, Scale, TaskCell

TOY = Scale("nano", 300, tokens=2048, length=256, batch_tokens=512, peak_lr=4e-3, limit=2)
WORDS = ("amber", "brave", "calm", "early", "quiet"), ("anchor", "bridge", "candle", "forest", "river")
STORY = "It was a dark night. The wind blew over the hills. Nobody spoke a word. "


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Everything that a cell reads, tiny."""
    folder = tmp_path_factory.mktemp("data")
    write_recall(folder)
    write_longbench(folder)
    for name in ("train", "valid"):
        write_rows(folder / f"wikipedia_en/{name}.jsonl.gz", [{"text": f"Article {i}. {STORY}"} for i in range(99)])
    for name in ("train", "valid", "test"):
        write_text(folder / f"novels_en/{name}/a.txt.gz", STORY * 90)
    prompt = f"Story: {STORY * 40}\n\nNow, answer the question based on the story: who?"
    write_rows(folder / MINI, [{**LONGBENCH_ROWS[0], "prompt": prompt}, *LONGBENCH_ROWS[1:]])
    for name in ("govreport/a", "qasper/papers", "code_python_stdlib/a"):
        write_rows(folder / f"{name}.jsonl.gz", [{"text": STORY * 40}])
    turns = [{"speaker": "Ann", "content": STORY * 40}]
    write_rows(folder / "qmsum/test.jsonl.gz", [{"meeting_transcripts": turns}])
    (folder / "paul_graham_essays").mkdir()
    (folder / "paul_graham_essays/a.txt").write_text(STORY * 20)
    (folder / "wordlists").mkdir()
    for name, words in zip(("adjectivelist", "nounlist"), WORDS, strict=True):
        (folder / f"wordlists/{name}.txt").write_text("\n".join(words))
    return folder


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return cells.run(Cell("gdn", 3), TOY, data, folder / "work", folder / "cells"), folder


def test_a_cell_is_its_file_and_is_found_again(found):
    measured, folder = found
    assert json.loads((folder / "cells/gdn-3.json").read_text()) == measured
    assert cells.find(Cell("gdn", 3), TOY, folder / "cells") == measured
    assert cells.find(Cell("gdn", 4), TOY, folder / "cells") is None
    other = Scale("nano", 300, tokens=4096, length=256, batch_tokens=512, peak_lr=4e-3, limit=2)
    assert cells.find(Cell("gdn", 3), other, folder / "cells") is None


def test_a_cell_repeats_to_the_same_numbers(found, data, tmp_path):
    measured, _ = found
    again = cells.run(Cell("gdn", 3), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert again["measures"] == measured["measures"]
    assert again["hash"] == measured["hash"]


def test_an_ablation_has_its_validation_loss_only(data, tmp_path):
    cell = Cell("without Short Conv", 0, measured=False)
    measured = cells.run(cell, TOY, data, tmp_path / "work", tmp_path / "cells")
    assert list(measured["measures"]) == ["validation"]
    assert measured["settings"]["model"]["mixers"][0]["conv_size"] is None


def test_a_synthetic_cell_that_diverges_is_named_and_has_no_score(data, tmp_path, monkeypatch):
    monkeypatch.setattr("gated_deltanet.synthetic.train.schedule", lambda step, steps: math.inf)
    with pytest.raises(ValueError, match=r"rewriting: gdn, seed 0, has no score: .*NaN"):
        cells.run(TaskCell("rewriting", "gdn", 0), TOY, data, tmp_path / "work", tmp_path / "cells")
    assert not (tmp_path / "cells").exists()


def test_every_number_of_a_cell_is_there(found):
    measures = found[0]["measures"]
    assert set(measures) == {"validation", "pairs", "needles", "gain", "long_gain", "positions"}
    assert {(task, at) for task, lengths in measures["needles"].items() for at in lengths} == {
        (task, at) for task in needles.TASKS for at in ("0.5", "1", "2", "4")
    }
    assert all(n > 0 for text in measures["validation"].values() for _, n in text)
    assert len(measures["positions"]["PG19"]) == 20


def test_keys_of_training_and_of_questions_are_kept_apart():
    rng = random.Random(0)
    trained, asked = ({needles.key(rng, WORDS, held_out=out) for _ in range(200)} for out in (False, True))
    assert trained
    assert asked
    assert not trained & asked


def test_a_training_text_ends_with_what_its_needles_were():
    text = needles.document(random.Random(1), STORY.split(". "), WORDS, 40)
    assert text.count(text.split(" The ")[-1]) == 2


def test_questions_fill_their_length_and_score_the_value(data):
    asked = needles.questions("S-NIAH-2", 150, 3, data, lambda text: [ord(c) for c in text], 0)
    assert [len(each.tokens) for each in asked] == [150] * 3
    assert all(each.scored == 5 for each in asked)  # a space and four digits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "target is 'table9', expected perhaps"),
        (["table3", "--jobs", "0"], "--jobs is 0, expected 1 or more"),
        (["table3", "--data-dir", "nowhere"], "--data-dir is nowhere, expected a folder"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert cli.main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_plan_counts_runs_and_hours(tmp_path, capsys):
    assert cli.main(["reproduce", "all", "--plan", "--json", "--out", str(tmp_path)]) is None
    plans = {each["target"]: each for each in json.loads(capsys.readouterr().out)}
    assert plans["table3"]["cells"] == 11 * 8 + 2 * 8
    assert plans["table3"]["tokens"] == plans["table3"]["cells"] * 4_000_000
    assert plans["table1"]["tokens"] == 0
