"""Table 5. What needs lm-eval is skipped without it: the model, and its templates."""

import json
import random
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from tiny_sets import NEWS_ROWS, write_longbench, write_rows

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.eval import prompting
from gated_deltanet.eval.longbench import (
    LAYOUT,
    MINI,
    TASKS,
    classification,
    code_similarity,
    common_words,
    local_rows,
    prompt,
    qa_f1,
    result,
    rouge_l,
    score,
)
from gated_deltanet.eval.paper_table import mean_score, measure
from gated_deltanet.paper import TABLE_5

needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")


@pytest.mark.parametrize(
    ("said", "right", "expected"),
    [
        ("The cat, a cat!", "cat", 2 / 3),  # two words, one of them right
        ("She declined to read it.", "she declined", 4 / 7),
        ("an apple", "The Apple.", 1),
        ("nothing", "all", 0),
        ("the", "a", 0),
        ("", "a word", 0),
    ],
)
def test_qa_f1_is_of_words_without_articles_and_punctuation(said, right, expected):
    assert qa_f1(said, right) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "right", "expected"),
    [
        ("a b c d", "a c e", 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)),
        ("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 2 * (4 / 8) * (4 / 5) / (4 / 8 + 4 / 5)),  # both sentences
        ("a a a a", "a", 1),  # words count once
        ("b a", "a b", 1 / 2),
        ("Old", "old", 0),
        ("", "old", 0),
        ("...", "old", 0),
    ],
)
def test_rouge_l_is_of_words_in_common_and_in_order(said, right, expected):
    assert rouge_l(said, right) == pytest.approx(expected, abs=1e-7)


def test_a_longest_common_subsequence_is_a_subsequence_of_both_and_the_longest():
    assert common_words(["x", "a", "b", "y"], ["a", "x", "b"]) == ["a", "b"]  # not x b: words of the second go first
    assert common_words([], ["a"]) == []


def test_a_class_counts_by_how_many_are_named_but_for_parts_of_its_own_name():
    classes = ["Date", "Reason", "location", "Other location"]
    assert classification("Date", "Date", classes) == 1
    assert classification("Date or Reason", "Date", classes) == 0.5
    assert classification("Other location", "Other location", classes) == 1
    assert classification("Other location", "location", classes) == 0.5
    assert classification("none", "Date", classes) == 0


@pytest.mark.parametrize(
    ("said", "right", "expected"),
    [
        ("\n# why\n```\n    return x\nprint()", "    return x", 1),
        ("return x", "return y", 0.88),  # 14 of 16 characters
        ("// only\n", "return y", 0),
        ("", "", 1),
    ],
)
def test_code_is_compared_by_its_first_line_in_hundredths(said, right, expected):
    assert code_similarity(said, right) == expected


def test_metrics_are_those_of_the_packages():
    rouge = pytest.importorskip("rouge", reason="rouge is not installed").Rouge()
    fuzz = pytest.importorskip("fuzzywuzzy.fuzz", reason="fuzzywuzzy is not installed")
    rng = random.Random(0)
    for _ in range(300):
        a, b = ("".join(rng.choices("ab c. d", k=rng.randint(1, 40))) for _ in range(2))
        if a.strip(".") and b.strip("."):
            expected = rouge.get_scores([a], [b], avg=True)["rouge-l"]["f"]
            assert rouge_l(a, b) == pytest.approx(expected, abs=1e-12), (a, b)
        assert code_similarity(a, b) == (fuzz.ratio(a, b) if a.strip() else fuzz.ratio("", b)) / 100


@pytest.mark.parametrize("name", TASKS)
def test_metrics_are_those_of_lm_eval(name):
    for package in ("lm_eval", "rouge", "fuzzywuzzy", "jieba"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from lm_eval.tasks.longbench import metrics  # pyright: ignore[reportMissingImports]

    theirs = {
        "qa_f1": metrics.get_qa_f1_score,
        "rouge_l": metrics.get_rouge_score,
        "classification": metrics.get_classification_score,
        "code_similarity": metrics.get_code_sim_score,
    }[TASKS[name].metric]
    rng, words = random.Random(name), ["The", "a", "cat", "Date", "location", "x =", "# y", ".", "\n", "  ", "Reason,"]
    classes = ["Date", "Reason", "Other location", "location"]
    for _ in range(60):
        said = " ".join(rng.choices(words, k=rng.randint(0, 12)))
        answers = (
            ["Date", "Other location"] if name == "trec" else [" ".join(rng.choices(words, k=7)) for _ in range(2)]
        )
        row = {"answers": answers, "all_classes": classes}
        (expected,) = theirs(row, [said]).values()
        assert score(name, said, row) == pytest.approx(expected, abs=1e-12), (said, answers)


def test_rows_are_prompts_or_become_them(tmp_path):
    write_longbench(tmp_path)
    file, rows = local_rows("lcc", tmp_path)
    assert (file, len(rows)) == (MINI, 2)
    assert prompt(rows[1], lambda row: "") == "Read this. " + "word " * 40 + "Answer:"
    file, rows = local_rows("multi_news", tmp_path)
    assert (file, len(rows)) == ("longbench_mini/multi_news_full.jsonl.gz", 3)
    assert prompt(rows[2], lambda row: f"News: {row['context']}{row['question']}") == "News: Passage 1:\nNews 2."
    with pytest.raises(ValueError, match="has no rows"):
        local_rows("qmsum", tmp_path)


def test_longbenchs_own_file_comes_first(tmp_path):
    write_longbench(tmp_path)
    (tmp_path / "longbench").mkdir()
    (tmp_path / "longbench" / "lcc.jsonl").write_text(json.dumps({"input": "", "context": "x", "answers": ["y"]}))
    assert local_rows("lcc", tmp_path)[0] == "longbench/lcc.jsonl"
    (tmp_path / "longbench" / "lcc.jsonl").rename(tmp_path / "longbench" / "lcc_e.jsonl")
    assert local_rows("lcc", tmp_path)[0] == MINI
    (tmp_path / "longbench" / "lcc_e.jsonl").rename(tmp_path / "longbench" / "lcc-test.jsonl")
    assert local_rows("lcc", tmp_path)[0] == "longbench/lcc-test.jsonl"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("lcc", {"prompt": "a"}, "row 1: answers is missing"),
        ("lcc", {"answers": ["a"]}, "row 1: context is missing"),
        ("trec", {"prompt": "a", "answers": ["a"]}, "row 1: all_classes is missing"),
        ("trec", {"prompt": " ", "answers": ["a"], "all_classes": ["a"]}, "row 1: prompt is ' ', expected a string"),
    ],
)
def test_a_row_that_cannot_be_asked_is_an_error(tmp_path, name, row, message):
    write_rows(tmp_path / MINI, [{"task": name, **row}])
    with pytest.raises(ValueError, match=message):
        local_rows(name, tmp_path)
    with pytest.raises(ValueError, match="has no rows"):  # another's mistakes are not its own
        local_rows("qasper", tmp_path)


def found(name: str) -> dict[str, Any]:
    values = [0.5, 0.25] if TASKS[name].group == "Code" else [1.0, 0.0]
    return {**mean_score(TASKS[name].metric, values), "rows": 2, "rows_held": 9, "cut": 1, "as_in_the_paper": False}


def test_the_table_is_the_papers_with_means_of_groups():
    made = result(measure(LAYOUT, TASKS, found) | {"length": 4096}, "ours")
    _, heads, cells = made.table
    assert heads[1:5] == ["NQA", "QQA", "MFQ", "Single-Doc QA"]
    assert heads[-4:] == ["LCC", "RBP", "Code", "Avg"]
    assert cells[0][-4:] == ["37.5", "37.5", "37.5", "48.2"]  # (12 × 50 + 2 × 37.5) / 14
    assert cells[2][-4:] == ["2", "2", "4", "28"]
    paper = dict(zip(heads, cells[-1], strict=True))
    assert (paper["NQA"], paper["Single-Doc QA"], paper["Avg"]) == ("12.7", "17.6", "18.4")
    assert all(len(row) == len(heads) for row in cells)
    assert "lcc 2 of 500" in "\n".join(made.notes)
    assert "(14 of 28)" in "\n".join(made.notes)


def test_a_task_that_is_missing_leaves_its_group_without_a_mean(tmp_path):
    def evaluate(name):
        return found(name) if name != "lcc" else local_rows(name, tmp_path)

    document: dict[str, Any] = measure(LAYOUT, TASKS, evaluate)
    places = f"longbench/lcc.jsonl or longbench_mini/lcc_full.jsonl.gz or {MINI}"
    assert document["left_out"] == {"lcc": f"no {places} in {tmp_path}"}
    assert document["row"]["Code"] is document["row"]["Avg"] is document["row"]["LCC"] is None
    assert document["row"]["Few-shot"] == 50


def test_the_papers_table_has_a_number_for_each_task_and_the_average():
    assert {len(row) for row in TABLE_5.values()} == {len(TASKS) + 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), folder, byte_tokenizer())
    return folder


@needs_lm_eval
@pytest.mark.filterwarnings("ignore")
def test_the_command_fills_a_folder_cuts_middles_and_goes_on(model, tmp_path, capsys, monkeypatch):
    write_longbench(tmp_path)
    asked, complete, out = [], prompting.complete, tmp_path / "out"

    def shorter(model, some, max_tokens, stop):
        asked.extend(some)
        return complete(model, some, 3, stop)

    monkeypatch.setattr(prompting, "complete", shorter)
    command = ["eval", str(model), "--suite", "longbench", "--data-dir", str(tmp_path), "--out", str(out)]
    command += ["--max-length", "192"]
    assert cli.main(command) is None
    assert "Left out: qmsum" in capsys.readouterr().out
    first = json.loads((out / "longbench.json").read_text())
    assert first["left_out"]["gov_report"].startswith("192 tokens have no room for an answer of 512")
    assert set(first["left_out"]) == {"gov_report", "qmsum", "multi_news"}
    assert first["sets"]["lcc"]["cut"] == 1
    assert first["sets"]["lcc"]["rows"] == 2
    longest = max(asked, key=len)
    assert longest.startswith("Read this. word")
    assert longest.endswith("word Answer:")
    assert len(longest) == 192 - 1 - 32
    assert "| Gated DeltaNet-H2 1.3B (paper) | 12.7 |" in (out / "longbench.md").read_text()
    monkeypatch.setattr(prompting, "complete", None)  # nothing is left to complete
    assert cli.main(command) is None
    assert json.loads((out / "longbench.json").read_text())["row"] == first["row"]


@needs_lm_eval
@pytest.mark.parametrize("name", TASKS)
def test_lm_eval_says_how_each_task_is_asked(name):
    from gated_deltanet.eval.lm_eval_tasks import recipe

    found = recipe(f"longbench_{name}")
    assert (found.dataset, found.name, found.split) == ("Xnhyacinth/LongBench", name, "test")
    assert found.sampling.max_tokens in (32, 64, 128, 512)
    assert found.sampling.temperature == 0
    filled = found.fill({"context": "CONTEXT", "question": "QUESTION", "answers": ["x"]})
    assert "CONTEXT" in filled


@needs_lm_eval
@pytest.mark.filterwarnings("ignore")
def test_without_a_folder_the_rows_are_the_hubs(model, monkeypatch, capsys):
    def load(dataset, name, split):
        if name != "lcc":
            raise ConnectionError("cannot reach the hub")
        return NEWS_ROWS[:1]

    monkeypatch.setattr("gated_deltanet.data.reach.reachable", lambda: True)
    monkeypatch.setattr("gated_deltanet.data.hub.load_dataset", load)
    monkeypatch.setattr(prompting, "complete", lambda model, some, *how: ["Old news." for _ in some])
    assert cli.main(["eval", str(model), "--suite", "longbench", "--json"]) is None
    document = json.loads(capsys.readouterr().out)
    assert document["sets"]["lcc"]["scores"] == {"code_similarity": 1}
    assert document["sets"]["lcc"]["source"] == "hub: Xnhyacinth/LongBench lcc"
    assert len(document["left_out"]) == 13
