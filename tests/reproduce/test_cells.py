import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tiny_sets import LONGBENCH_ROWS, write_longbench, write_recall, write_rows, write_text

from gated_deltanet import cli
from gated_deltanet.data import tokenizer
from gated_deltanet.eval.longbench import MINI
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.prefix_sharing import Score
from gated_deltanet.eval.recall import SETS
from gated_deltanet.interop.folder import load
from gated_deltanet.reproduce import (
    cells,
    experiment,
    needles,
    passages,
    pilot,
    reproduce,
    speed_cells,
    systems,
    task_cells,
    taught_cells,
    texts,
)
from gated_deltanet.reproduce.scales import SCALES, Scale
from gated_deltanet.reproduce.speed_cells import SpeedCell
from gated_deltanet.reproduce.task_cells import MqarCell, TaskCell
from gated_deltanet.reproduce.taught_cells import LESSONS, TaughtCell
from gated_deltanet.reproduce.text_cells import TextCell, command
from gated_deltanet.synthetic.tasks import TASKS
from gated_deltanet.train import resolve
from gated_deltanet.train.data import is_prepared

TOY = Scale("nano", 300, tokens=2048, length=256, batch_tokens=512, peak_lr=4e-3, limit=2)
WORDS = ("amber", "brave", "calm", "early", "quiet"), ("anchor", "bridge", "candle", "forest", "river")
STORY = "It was a dark night. The wind blew over the hills. Nobody spoke a word. "


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Everything that a cell reads, tiny."""
    folder = tmp_path_factory.mktemp("data")
    write_recall(folder)
    asked = [{"context": f"{STORY}Ann has {n} cats.", "question": "Who?", "answers": [f"{n} cats"]} for n in range(3)]
    write_rows(folder / SETS["squad"].data.file, asked)
    write_longbench(folder)
    for name in ("train", "valid"):
        write_rows(folder / f"wikipedia_en/{name}.jsonl.gz", [{"text": f"Article {i}. {STORY}"} for i in range(99)])
    for name in ("train", "valid", "test"):
        write_text(folder / f"novels_en/{name}/a.txt.gz", STORY * (400 if name == "test" else 90))
    prompts = [
        f"Story: {name}{STORY * 40}\n\nNow, answer the question based on the story: who?" for name in ("", "2. ")
    ]
    rows = zip(LONGBENCH_ROWS, prompts, strict=False)
    write_rows(folder / MINI, [*({**row, "prompt": prompt} for row, prompt in rows), *LONGBENCH_ROWS[2:]])
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
    return cells.run(TextCell("gdn", 3), TOY, data, folder / "work", folder / "cells"), folder


def here(jobs, mp_context):
    """Instead of other processes, which would not know of what a test has changed."""
    return ThreadPoolExecutor(1)


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
        made = [pool.submit(texts.make, data, tmp_path / "texts", TOY.tokens, TOY.vocab_size) for _ in range(2)]
    assert [each.result() for each in made] == [tmp_path / "texts"] * 2
    assert is_prepared(tmp_path / "texts")
    assert list(tmp_path.iterdir()) == [tmp_path / "texts"]


def test_a_run_that_was_stopped_is_named_and_goes_on(found, data, tmp_path, monkeypatch):
    measured, _ = found
    monkeypatch.setattr(loop, "asked_to_stop", lambda: nullcontext(lambda: True))
    with pytest.raises(InterruptedError, match="gdn-3 was stopped after step 1 of 8; the same command goes on"):
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
    monkeypatch.setattr(task_cells, "MQAR_STEPS", 2)
    found = cells.run(MqarCell("deltanet", 1024, 0), TOY, data, tmp_path / "work", tmp_path / "cells")
    measures = found["measures"]
    assert found["system"] == "mqar: deltanet; 1024"
    assert set(measures["by_rate"]) == {"0.001", "0.003", "0.01"}
    assert measures["accuracy"] == measures["by_rate"][str(measures["rate"])]
    assert [point["level"] for point in measures["points"]] == [16, 32, 64]


def test_a_round_of_speeds_is_a_cell_of_each_system(data, tmp_path, monkeypatch):
    monkeypatch.setattr(speed_cells, "PAPER", ("gdn", "samba"))
    monkeypatch.setattr(speed_cells, "SHAPES", ((16, 2), (32, 1)))
    found = cells.run(SpeedCell(0), TOY, data, tmp_path / "work", tmp_path / "cells")
    parts = {each["system"]: each for each in experiment.by_system(found)}
    assert len(parts) == 2
    assert set(parts["speed: gdn"]["measures"]["tokens_per_second"]) == {"16", "32"}
    assert sum(each["seconds"]["measuring"] for each in parts.values()) == pytest.approx(found["seconds"]["measuring"])


def test_the_papers_scale_trains_with_torchrun(data, tmp_path):
    run = command(TextCell("gdn", 3), SCALES["1.3b"], data, tmp_path)
    assert run[1:3] == ["-m", "torch.distributed.run"]
    assert run[run.index("--recipe") + 1] == "paper-1.3b"
    model = json.loads((tmp_path / "model-gdn-3.json").read_text())
    assert model["d_model"] == 2400
    assert run[run.index("--seed") + 1] == "3"
    recipe = resolve(None, "paper-1.3b", {"model": run[run.index("--model") + 1]})
    assert recipe.tokens == 100 * 10**9


def test_the_pilot_tries_rates_until_the_best_lies_between(data, tmp_path, monkeypatch):
    losses = {2e-3: 3.0, 4e-3: 2.5, 8e-3: 2.0, 16e-3: 2.2}

    def measured(cell, scale, data_dir, work, out):
        return {"measures": {"validation": {"articles": [[losses[cell.rate], 1]]}}}

    monkeypatch.setattr(pilot, "run_all", lambda todo, place, *_: [(cell, measured(cell, *place)) for cell in todo])
    place = pilot.Place(TOY, data, tmp_path, tmp_path)
    assert pilot.tune(["gdn"], place, 1, print) == {"gdn": losses}


def test_a_pilot_finds_rates_and_what_seeds_can_tell(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pilot, "RATES", (1e-3,))
    monkeypatch.setattr(pilot, "wanted", lambda tried: [] if tried else pilot.RATES)
    monkeypatch.setattr(pilot, "SEEDS", (100, 101))
    monkeypatch.setattr(pilot, "SHARE", 1)
    monkeypatch.setattr(cells, "ProcessPoolExecutor", here)
    monkeypatch.setattr(taught_cells, "STEPS", 1)
    told = pilot.pilot(data, out=tmp_path / "out", work=tmp_path / "work", scale=TOY, names=("gdn", "mamba2"))
    assert told["rates"] == {"gdn": 1e-3, "mamba2": 1e-3}
    assert set(told["spread"]) == {"gdn − mamba2"}
    assert len(told["whole"]) == 1
    assert set(told["needles"]) == set(told["recall"]) == {"gdn", "mamba2"}
    assert json.loads((tmp_path / "out" / "pilot.json").read_text()) == told


def test_every_number_of_a_cell_is_there(found):
    measures = found[0]["measures"]
    assert set(measures) == {"validation", "pairs", "positions", "far_afresh"}
    assert all(n > 0 for text in measures["validation"].values() for _, n in text)
    assert len(measures["positions"]["PG19"]) == 20


def test_every_target_runs_and_has_a_page(data, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ProcessPoolExecutor", here)
    monkeypatch.setattr(experiment, "FEW", 1)
    monkeypatch.setattr(systems, "TEXT", ("gdn", "mamba2"))
    monkeypatch.setattr(systems, "ABLATIONS", {name: systems.ABLATIONS[name] for name in ("naive Delta Rule",)})
    monkeypatch.setattr(task_cells, "MQAR_STEPS", 1)
    monkeypatch.setattr(taught_cells, "STEPS", 1)
    for name, lesson in LESSONS.items():
        monkeypatch.setitem(LESSONS, name, lesson._replace(rates=dict.fromkeys(("gdn", "mamba2"), 1e-3)))
    monkeypatch.setattr(experiment, "MQAR_STATES", (1024,))
    monkeypatch.setattr(experiment, "MQAR_MODELS", ("gdn",))
    monkeypatch.setattr(speed_cells, "SHAPES", ((16, 2), (32, 1)))
    monkeypatch.setattr(speed_cells, "PAPER", ("gdn",))
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
    assert reproduce("all", out=tmp_path / "out", scale=scale) == judged  # from the cells alone


@pytest.mark.parametrize("name", needles.TASKS)
def test_the_hay_hides_each_needle_once_and_its_value_is_asked_for(name):
    task = needles.TASKS[name]
    tokens, targets = needles.row(random.Random(1), 64, task, 3, 3, STORY.encode())
    assert len(tokens) == len(targets) == 64
    hay, asked = tokens[: -3 * (1 + task.words)], tokens[-3 * (1 + task.words) :]
    facts = [asked[i : i + 1 + task.words] for i in range(0, len(asked), 1 + task.words)]
    assert all(sum(hay[i : i + len(fact)] == fact for i in range(len(hay))) == 1 for fact in facts)
    assert len([token for token in hay if token < 256]) == 64 - 6 * (1 + task.words)
    assert [t for t in targets if t >= 0] == [value for fact in facts for value in fact[1:]]
    assert all(target in (-100, following) for target, following in zip(targets, tokens[1:], strict=False))


def test_a_fact_that_is_said_again_is_asked_for_from_the_second_time_on():
    task = needles.TASKS["S-NIAH-1"]
    tokens, targets = needles.row(random.Random(1), 128, task, 2, 11, STORY.encode())
    said = [i for i, token in enumerate(tokens) if token in needles.KEYS]
    first = {tokens.index(key) for key in {tokens[i] for i in said}}
    assert (len(said), len(first)) == (13, 2)
    assert [i for i, target in enumerate(targets) if target >= 0] == [i for i in said if i not in first]
    assert all(targets[i] == tokens[i + 1] for i in said if i not in first)


def test_a_row_too_short_for_its_needles_is_refused():
    with pytest.raises(ValueError, match="a row of 15 tokens, expected at least 30 for 3 facts"):
        needles.row(random.Random(1), 15, needles.TASKS["S-NIAH-3"], 3, 3, STORY.encode())


def test_needles_are_learnt_from_novels_and_asked_for_in_essays(data):
    hay = needles.read_hay(data)
    learnt, asked = (torch.Generator().manual_seed(0) for _ in range(2))
    hay = hay._replace(novels=b"n", essays=b"e", line=b"l")
    rows = [needles.batch(learnt, 2, 32, hay, answers_only=True).tokens for _ in range(9)]
    assert {int(token) for row in rows for token in row.flatten() if token < 256} == {ord("n"), ord("l")}
    tokens = needles.questions(asked, 2, 32, "S-NIAH-2", hay).tokens
    assert {int(token) for token in tokens.flatten() if token < 256} == {ord("e")}


def test_who_learns_to_read_foretells_every_token(data):
    hay = needles.read_hay(data)
    tokens, targets = needles.batch(torch.Generator().manual_seed(0), 2, 64, hay, answers_only=False)
    assert torch.equal(targets[:, :-1], tokens[:, 1:])
    assert (targets[:, -1] == -100).all()


@pytest.mark.parametrize("length", [16, 17, 64])
def test_what_is_read_again_stood_in_the_passage_and_is_asked_for(length):
    text = bytes(range(100, 200))
    tokens, targets = passages.row(random.Random(2), length, text)
    line = tokens.index(passages.LINE)
    passage, again = bytes(tokens[1:line]), bytes(tokens[line + 1 :])
    assert len(tokens) == len(targets) == length
    assert tokens[0] == passages.BEGIN
    assert passage in text * 2
    assert again in passage
    assert length // 4 <= len(again) < length // 2
    assert [t for t in targets if t >= 0] == list(again[passages.FOUND :])
    assert all(target in (-100, following) for target, following in zip(targets, tokens[1:], strict=False))


def test_an_answer_is_asked_for_by_the_words_before_it():
    row = {
        "context": f"9 dogs. {STORY}Ann has 9 dogs.",
        "question": "How many?",
        "answers": ["", "9 dogs"],
        "wanted": [],
    }
    found = passages.begun(row)
    assert found is not None
    assert found["answers"] == ["9 dogs"]
    assert found["question"] == f"{STORY}Ann has "[-passages.LEAD :]
    assert passages.begun({**row, "answers": ["9 cats"]}) is None
    assert passages.begun({**row, "context": "Ann has 9 dogs."}) is None  # nothing to ask by


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_cell_of_taught_systems_repeats_to_the_same_numbers(lesson, data, tmp_path, monkeypatch):
    monkeypatch.setattr(taught_cells, "STEPS", 2)
    cell = TaughtCell(lesson, "gdn", 3)
    one, two = (cells.run(cell, TOY, data, tmp_path / "work", tmp_path / name)["measures"] for name in "ab")
    assert one == two


def test_needles_are_asked_for_at_every_length(data):
    model = taught_cells.small_model(TaughtCell("needles", "gdn", 3).config(TOY), 3)
    asked = needles.asked(model, data, 3, 2)["needles"]
    assert list(asked) == list(needles.TASKS)
    assert all(list(lengths) == ["0.5", "1", "2", "4"] for lengths in asked.values())


def test_a_document_is_worth_as_much_as_it_tells_of_the_answer(data, monkeypatch):
    """A model that has seen the answer is sure of it, else it guesses."""
    model = OurModel(taught_cells.small_model(TaughtCell("recall", "gdn", 3).config(TOY), 3), passages.BYTES)

    def sure(_, requests):
        for tokens, n in requests:
            assert len(tokens) <= passages.LONG * 256
            told = bytes(tokens[-n:]) in bytes(tokens[1 : -n - passages.LEAD])
            yield Score(0.0 if told else -2.0 * n, told)

    monkeypatch.setattr(passages, "scores", lambda model, requests: list(sure(model, requests)))
    found = passages.gains(model, 256, data, 3)
    assert found["gain"] == {"squad": [[12.0, 6]] * 3}
    assert set(found["long_gain"]) == {"narrativeqa"}


def test_where_nothing_can_be_asked_that_is_said(tmp_path, data):
    for name in passages.ASKED_SETS:
        row = {"context": "Ann.", "text": "Ann.", "question": "Who?", "answers": ["Sue"], "key": "name", "value": "Sue"}
        write_rows(tmp_path / SETS[name].data.file, [row])
    model = OurModel(taught_cells.small_model(TaughtCell("recall", "gdn", 3).config(TOY), 3), passages.BYTES)
    with pytest.raises(ValueError, match=r"gain: nothing in .* can be asked for"):
        passages.gains(model, 256, tmp_path, 3)


def test_a_model_of_the_papers_size_is_asked_rulers_questions(data, found):
    _, folder = found
    model = folder / "work/gdn-3"
    asked = needles.asked_by_ruler(OurModel(load(model), tokenizer.load(model)), 2048, data, 1)
    assert all(each["asked"] == 1 and each["loss"] > 0 for by in asked["needles"].values() for each in by.values())


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
