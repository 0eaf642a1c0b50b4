import random

import pytest
import torch
from tiny_sets import write_rows
from toy_scale import STORY, TOY

from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.prefix_sharing import Score
from gated_deltanet.eval.recall import SETS
from gated_deltanet.interop.folder import load
from gated_deltanet.reproduce import cells
from gated_deltanet.reproduce.cells import needles, passages, taught
from gated_deltanet.reproduce.cells.taught import LESSONS, TaughtCell


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
    monkeypatch.setattr(taught, "STEPS", 2)
    cell = TaughtCell(lesson, "gdn", 3)
    one, two = (cells.run(cell, TOY, data, tmp_path / "work", tmp_path / name)["measures"] for name in "ab")
    assert one == two


def test_needles_are_asked_for_at_every_length(data):
    model = taught.small_model(TaughtCell("needles", "gdn", 3).config(TOY), 3)
    asked = needles.asked(model, data, 3, 2)["needles"]
    assert list(asked) == list(needles.TASKS)
    assert all(list(lengths) == ["0.5", "1", "2", "4"] for lengths in asked.values())


def test_a_document_is_worth_as_much_as_it_tells_of_the_answer(data, monkeypatch):
    """A model that has seen the answer is sure of it, else it guesses."""
    model = OurModel(taught.small_model(TaughtCell("recall", "gdn", 3).config(TOY), 3), passages.BYTES)

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
    model = OurModel(taught.small_model(TaughtCell("recall", "gdn", 3).config(TOY), 3), passages.BYTES)
    with pytest.raises(ValueError, match=r"gain: nothing in .* can be asked for"):
        passages.gains(model, 256, tmp_path, 3)


def test_a_model_of_the_papers_size_is_asked_rulers_questions(data, found):
    _, folder = found
    (model,) = (path for path in (folder / "work").glob("gdn-3-*") if path.is_dir())
    asked = needles.asked_by_ruler(OurModel(load(model), tokenizer.load(model)), 2048, data, 1)
    assert all(each["asked"] == 1 and each["loss"] > 0 for by in asked["needles"].values() for each in by.values())
