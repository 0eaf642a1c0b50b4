"""Evaluation from Python: suites as functions, and their results."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tiny_models import BYTES, make, ours

from gated_deltanet import CausalLM, eval, get_preset, save
from gated_deltanet.eval.model import OurModel
from gated_deltanet.interop.huggingface import to_fast_tokenizer
from gated_deltanet.result import Result

SUITES = ("commonsense", "extrapolation", "longbench", "needle", "recall")
RESULTS = Path(__file__).parents[2] / "results"


def small() -> CausalLM:
    return CausalLM(replace(get_preset("gdn-nano"), vocab_size=257))


def test_a_model_in_memory_is_evaluated_and_its_result_prints_itself(tmp_path):
    result = eval.needle(small(), BYTES, lengths=(700, 600), limit=2)
    assert isinstance(result, Result)
    assert [(cell["length"], cell["rows"]) for cell in result.document["cells"]] == [(600, 2), (700, 2)]
    assert json.loads(result.as_json())["cells"][0]["task"] == "S-NIAH-1"
    assert "| S-NIAH-1 600 |" in str(result)
    assert "| Gated DeltaNet 1.3B (paper) |" in result.as_markdown()
    result.save(tmp_path / "new")
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["needle.json", "needle.md", "needle.png"]


def test_a_model_is_taken_in_any_form(tmp_path):
    save(ours("gdn"), tmp_path, BYTES)
    forms = [(ours("gdn"), BYTES), (OurModel(ours("gdn"), BYTES),), (tmp_path,), (eval.open(tmp_path),)]
    found = [eval.as_model(*form).losses([1, 2, 3]).tolist() for form in forms]
    assert found == found[:1] * len(forms)
    assert eval.as_model(make("gpt2"), to_fast_tokenizer(BYTES)).max_positions == 700
    with pytest.raises(ValueError, match="the tokenizer is missing"):
        eval.as_model(ours("gdn"))


def test_answers_are_kept_of_a_checkpoint_and_not_of_a_model_in_memory(tmp_path, monkeypatch):
    save(small(), tmp_path / "model", BYTES)
    first = eval.needle(tmp_path / "model", lengths=[600], limit=1, keep=tmp_path / "kept")
    monkeypatch.setattr("gated_deltanet.eval.model.generate", None)
    again = eval.needle(tmp_path / "model", lengths=[600], limit=1, keep=tmp_path / "kept")
    assert again.document["cells"] == first.document["cells"]
    with pytest.raises(ValueError, match=r"expected one opened from its folder: eval\.open"):
        eval.needle(small(), BYTES, lengths=[600], limit=1, keep=tmp_path / "kept")


def test_numbers_that_json_does_not_have_become_null():
    result = Result("x", {"a": [float("nan"), 1.5], "b": {"c": float("inf")}}, ("t", ["h"], [["c"]]), ("t", [], []), [])
    assert json.loads(result.as_json()) == {"a": [None, 1.5], "b": {"c": None}}


@pytest.mark.parametrize("suite", SUITES)
def test_committed_tables_are_what_their_documents_say(suite):
    document = json.loads((RESULTS / "eval" / f"{suite}.json").read_text())
    module = import_module(f"gated_deltanet.eval.{suite}")
    assert module.result(document, "gdn-tiny").as_markdown() == (RESULTS / "eval" / f"{suite}.md").read_text()
