"""Table 4. What needs `datasets` is skipped without it: the hub's sets."""

import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from tiny_sets import QUESTIONS, RECALL_ROWS, write_recall

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.eval import prompting
from gated_deltanet.eval.data_sets import read_rows
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.paper_table import mean_score, measure, value
from gated_deltanet.eval.prompting import cut_around, cut_middle
from gated_deltanet.eval.recall import LAYOUT, SHOWN, cloze, completed, contains, keyed, prompt, result
from gated_deltanet.eval.recall import SETS as RECALL
from gated_deltanet.paper import TABLE_4

needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")
BYTES = byte_tokenizer()
CODEC = OurModel(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), BYTES)
TEXT = "zero one two THREE four five six seven eight nine"


@pytest.mark.parametrize(
    ("wanted", "room", "kept"),
    [
        (["three"], 11, " two THREE "),  # five before it
        (["nine", "six"], 8, "ive six "),  # the first of them
        (["nine"], 8, "ght nine"),
        (["zero"], 8, "zero one"),
        (["ten"], 8, "zero one"),
        ([], 4, "zero"),
        (["three"], len(TEXT), TEXT),
    ],
)
def test_a_text_is_cut_around_the_first_place_of_what_is_wanted(wanted, room, kept):
    assert cut_around(TEXT, wanted, room, CODEC) == kept


def test_half_characters_at_a_cut_are_left_out():
    assert cut_around("äöü" * 9, ["ü"], 7, CODEC) == "öüä"  # the cut is in the middle of an ä and of an ö
    assert cut_middle("äöüß", 6, CODEC) == "äß"


def test_the_middle_is_left_out():
    assert cut_middle("0123456789", 5, CODEC) == "01789"
    assert cut_middle("0123456789", 10, CODEC) == "0123456789"


def test_prompts_are_sentences_to_complete(tmp_path):
    write_recall(tmp_path)
    prompts = {name: prompt(read_rows(RECALL[name].data, tmp_path)[0], 999, CODEC) for name in RECALL_ROWS}
    assert prompts["squad"] == "Ann has 0 cats.  She likes them. How many cats has Ann? The answer is"
    assert prompts["fda"] == "# Summary\nProduct code: OSK\nPanel: 8. Product code:"
    assert prompts["drop"] == prompts["nq"] == prompts["triviaqa"] == prompts["squad"]


def test_rows_of_the_hub_are_completed_as_they_are():
    said = cloze({"context": "Ann has 3 cats. Ann's cats are", "question": "Ann's cats are", "answers": ["3"]})
    assert prompt(said, 999, CODEC) == "Ann has 3 cats. Ann's cats are"
    said = completed({"text": "Ann has 3 cats. She has ", "value": " 3 "})
    assert (prompt(said, 999, CODEC), said["answers"]) == ("Ann has 3 cats. She has", ["3"])
    said = keyed({"text": "year: 1\n Summary of information above... 1", "key": "year", "value": "1"})
    assert prompt(said, 999, CODEC) == "year: 1. Year:"


def test_prompt_fills_its_room_and_keeps_question_and_answer():
    row = cloze({"context": f"{'a ' * 400}ZEBRA{' b' * 400}", "question": "It was", "answers": ["zebra"]})
    made = prompt(row | {"wanted": ["zebra"]}, 100, CODEC)
    assert 98 <= len(CODEC.encode(made)) <= 100
    assert "ZEBRA" in made
    assert made.endswith("b. It was")
    with pytest.raises(ValueError, match="larger --max-length"):
        prompt(row, 8, CODEC)


def test_a_completion_is_right_if_it_contains_an_answer_in_any_case():
    assert contains(" the united STATES.", ["US", "United States"])
    assert not contains(" united", ["US", "United States"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "a", "question": "b?"}, "row 1: answers is missing"),
        ({"context": "a", "question": "b?", "answers": []}, "row 1: answers is '\\[\\]', expected a list of strings"),
        ({"context": "a", "question": "b?", "answers": ["c", ""]}, "row 1: answers is"),
        ({"context": 5, "question": "b?", "answers": ["c"]}, "row 1: context is '5', expected a string"),
    ],
)
def test_a_row_that_cannot_be_asked_is_an_error(tmp_path, row, message):
    data = RECALL["drop"].data
    (tmp_path / data.file).parent.mkdir()
    (tmp_path / data.file).write_bytes(gzip.compress(json.dumps(row).encode()))
    with pytest.raises(ValueError, match=message):
        read_rows(data, tmp_path)


def test_scores_have_lm_evals_standard_error():
    assert mean_score("contains", [1.0, 0.0, 0.0, 1.0, 0.0]) == {
        "scores": {"contains": 0.4},
        "stderr": {"contains": pytest.approx(0.06**0.5)},  # 5 × 0.24 / 4 / 5
    }
    assert mean_score("contains", [1.0])["stderr"] == {"contains": None}


def found(name: str) -> dict[str, Any]:
    """As an evaluation of two rows of nine."""
    scores = mean_score("contains", [1.0, 0.0])
    given = {"rows": 2, "rows_held": 9, SHOWN: 1, "differs": RECALL[name].differs, "as_in_the_paper": False}
    return scores | given


def test_the_table_is_the_papers_and_its_average_is_of_all():
    made = result(measure(LAYOUT, RECALL, found) | {"length": 2048}, "ours")
    title, heads, cells = made.table
    assert heads == ["model", "SWDE", "SQD", "FDA", "TQA", "NQ", "Drop", "Avg"]
    assert cells[0] == ["**ours**", *["50.0"] * 7]
    assert cells[1][1:] == [*["50.0"] * 6, "20.4"]  # 50 / √6
    assert cells[2][1:] == [*["2"] * 6, "12"]
    assert cells[3][1:] == ["no"] * 7
    assert [cells[4][0], cells[-1][0]] == ["RetNet 1.3B (paper)", "Gated DeltaNet-H2 1.3B (paper)"]
    assert cells[-1][1:] == ["38.2", "40.4", "50.7", "63.3", "24.8", "23.3", "40.1"]
    assert len(made.screen[2]) == 7
    assert "table 4" in title


def test_the_papers_averages_are_those_of_its_rows():
    for *values, average in TABLE_4.values():
        assert sum(values) / 6 == pytest.approx(average, abs=0.0501)


def test_what_is_missing_is_left_out_and_never_zero(tmp_path):
    write_recall(tmp_path)
    document: dict[str, Any] = {"length": 2048}
    document |= measure(LAYOUT, RECALL, lambda name: found(name) if read_rows(RECALL[name].data, tmp_path) else {})
    assert document["left_out"] == {"swde": f"no swde/validation.jsonl.gz in {tmp_path}"}
    assert document["row"]["SWDE"] is document["row"]["Avg"] is None
    made = result(document, "ours")
    assert made.table[2][0][1] == "–"
    notes = "\n".join(made.notes)
    assert "Left out: swde" in notes
    assert "drop 1 of 2." in notes
    assert "fda (rebuilt" in notes
    assert "not all are here" in notes
    assert value(LAYOUT.columns[0], document["sets"]) is None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), folder, BYTES)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_the_command_fills_a_folder_and_goes_on_from_kept_answers(model, tmp_path, capsys, monkeypatch):
    write_recall(tmp_path)
    (tmp_path / RECALL["nq"].data.file).write_bytes(gzip.compress(b'{"context": '))
    out = tmp_path / "out"
    command = ["eval", str(model), "--suite", "recall", "--data-dir", str(tmp_path), "--limit", "2", "--out", str(out)]
    assert cli.main(command) is None
    shown = capsys.readouterr().out
    assert "Left out: swde" in shown
    assert "row 1: malformed JSON" in shown
    first = json.loads((out / "recall.json").read_text())
    assert {name: each["rows"] for name, each in first["sets"].items()} == {
        "squad": 2,
        "fda": 2,
        "triviaqa": 1,
        "drop": 2,
    }
    assert set(first["left_out"]) == {"swde", "nq"}
    assert not any(each["as_in_the_paper"] for each in first["sets"].values())
    assert "| Gated DeltaNet-H2 1.3B (paper) | 38.2 |" in (out / "recall.md").read_text()
    monkeypatch.setattr(prompting, "complete", None)  # nothing is left to complete
    assert cli.main(command) is None
    again = json.loads((out / "recall.json").read_text())
    assert again["row"] == first["row"]


@pytest.mark.filterwarnings("ignore")
def test_a_killed_evaluation_asks_only_what_is_left(model, tmp_path, monkeypatch):
    write_recall(tmp_path)
    asked, killed = [], []

    def breaks(model, some, max_tokens, stop):
        if len(asked) == 2 and not killed:
            killed.append(1)
            raise KeyboardInterrupt
        asked.extend(some)
        return ["3" for _ in some]

    monkeypatch.setattr(prompting, "AT_ONCE", 1)
    monkeypatch.setattr(prompting, "complete", breaks)
    command = ["eval", str(model), "--suite", "recall", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 130
    assert len(asked) == 2
    assert cli.main(command) is None
    assert len(asked) == len(set(asked)) == 4  # three questions, which all sets have, and FDA's


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_hugging_face_is_asked_the_same(tmp_path, monkeypatch):
    from transformers import GPT2Config, GPT2LMHeadModel

    from gated_deltanet.interop.huggingface import to_fast_tokenizer

    config = GPT2Config(vocab_size=257, n_positions=128, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    to_fast_tokenizer(BYTES).save_pretrained(tmp_path / "gpt2")
    write_recall(tmp_path)
    asked = []
    complete = prompting.complete
    monkeypatch.setattr(prompting, "complete", lambda m, some, *how: asked.extend(some) or complete(m, some, *how))
    command = ["eval", str(tmp_path / "gpt2"), "--suite", "recall", "--data-dir", str(tmp_path), "--json"]
    assert cli.main(command) is None
    assert len(asked) == sum(map(len, RECALL_ROWS.values()))
    assert f"Ann has 2 cats.  She likes them. {QUESTIONS[0]['question']} The answer is" in asked


@needs_datasets
@pytest.mark.filterwarnings("ignore")
def test_without_a_folder_the_sets_are_jrts_own(model, tmp_path, monkeypatch, capsys):
    rows = {
        "hazyresearch/based-swde-v2": [{"text": "Year: 1999\nName: Ann\n", "key": "year", "value": "1999"}],
        "hazyresearch/based-squad": [{"text": "Ann has 3 cats. She has", "value": "3"}],
    }

    def load(dataset, name, split):
        if dataset not in rows:
            raise ConnectionError(f"cannot reach {dataset}")
        return rows[dataset]

    monkeypatch.setattr("gated_deltanet.data.reach.reachable", lambda: True)
    monkeypatch.setattr("gated_deltanet.data.hub.load_dataset", load)
    assert cli.main(["eval", str(model), "--suite", "recall", "--json"]) is None
    document = json.loads(capsys.readouterr().out)
    assert set(document["sets"]) == {"swde", "squad"}
    assert document["sets"]["squad"]["source"] == "hub: hazyresearch/based-squad"
    assert document["left_out"]["drop"] == "cannot reach hazyresearch/based_drop"


@pytest.mark.parametrize(("suite", "package"), [("recall", "datasets"), ("longbench", "lm-eval")])
def test_without_what_a_suite_needs_the_extra_is_named(suite, package, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # where there is no folder runs, so that runs/none may be a name on the hub
    monkeypatch.setattr("gated_deltanet.cli.eval.find_spec", lambda name: None)
    monkeypatch.setattr("gated_deltanet.data.reach.reachable", lambda: True)
    assert cli.main(["eval", "runs/none", "--suite", suite]) == 2
    assert f"--suite {suite} needs {package}: pip install 'gated-deltanet[eval]'" in capsys.readouterr().err
