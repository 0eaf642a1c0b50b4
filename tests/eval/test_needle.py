import json
from dataclasses import replace

import pytest

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.eval.needle import ANSWER, TASKS, WORDS, ask, cells, cut, effective_length, is_right, sentences
from gated_deltanet.paper import TABLE_2

BYTES = byte_tokenizer()
HAY = "It was night. Was it dark? It was! And so on, for 3.5 hours."


def question(task: str, length: int, number: int):
    return ask(TASKS[task], length, number, sentences(HAY, encode), WORDS, encode, first_token=256)


def encode(text: str) -> list[int]:
    return BYTES.encode(text).ids


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [700, 701, 1024])
def test_prompt_and_answer_fill_the_length_to_the_token(task, length):
    for number in range(11):
        asked = question(task, length, number)
        assert len(asked.tokens) + ANSWER == length
        text = BYTES.decode(asked.tokens)
        assert text.count(f"is: {asked.value}.") == 1
        assert text.endswith("mentioned in the provided text is")
        assert asked.depth == number / 10


def test_questions_are_always_the_same_and_differ():
    assert question("S-NIAH-2", 800, 3) == question("S-NIAH-2", 800, 3)
    assert len({question("S-NIAH-2", 800, number).value for number in range(20)}) == 20


def test_the_needle_lies_between_sentences_near_its_depth():
    hay = sentences(HAY, encode)
    assert [BYTES.decode(each) for each in hay][:2] == [" It was night.", " Was it dark?"]
    assert [len(cut(hay, 300, depth)[0]) for depth in (0, 1)] == [0, 300]
    before, after = cut(hay, 300, 0.5)
    assert len(before) + len(after) == 300
    assert abs(len(before) - 150) <= 20
    assert BYTES.decode(before)[-1] in ".?!"


def test_a_haystack_without_room_is_refused():
    with pytest.raises(ValueError, match="300 tokens"):
        question("S-NIAH-1", 300, 0)


def test_an_answer_is_right_if_it_holds_the_value_in_any_case():
    assert is_right(" ABC-1.", "abc-1")
    assert not is_right(" abc", "abc-1")


def test_cells_count_depths_and_the_effective_length_ends_at_the_first_failure():
    right = {1024: (True, True), 2048: (True, False), 4096: (True, True)}
    results = [
        {"task": "S-NIAH-1", "length": length, "depth": depth, "right": each}
        for length, both in right.items()
        for depth, each in zip((0.0, 1.0), both, strict=True)
    ]
    found = cells(results)
    assert [cell["accuracy"] for cell in found] == [100, 50, 100]
    assert found[1]["depths"] == {0.0: 100, 1.0: 0}
    assert found[1]["stderr"] == pytest.approx(50)
    assert effective_length(found, "S-NIAH-1") == 1024
    assert effective_length(found, "S-NIAH-1", least=50) == 4096


def test_the_papers_table_has_three_tasks():
    assert all([len(values) for values in row.values()] == [4, 4, 3] for row in TABLE_2.values())


def test_the_command_leaves_out_what_needs_essays_and_goes_on_from_kept_answers(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), tmp_path / "model", BYTES)
    command = ["eval", str(tmp_path / "model"), "--suite", "needle", "--lengths", "600", "--limit", "2"]
    assert cli.main([*command, "--out", str(out)]) is None
    assert "Left out: S-NIAH-2 600" in capsys.readouterr().out
    first = json.loads((out / "needle.json").read_text())
    assert [(cell["task"], cell["rows"]) for cell in first["cells"]] == [("S-NIAH-1", 2)]
    assert (out / "needle.png").stat().st_size > 1000
    assert "Gated DeltaNet 1.3B (paper)" in (out / "needle.md").read_text()
    monkeypatch.setattr("gated_deltanet.eval.model.generate", None)
    assert cli.main([*command, "--out", str(out)]) is None
    assert json.loads((out / "needle.json").read_text())["cells"] == first["cells"]


def test_with_essays_and_words_all_three_are_asked(tmp_path, capsys):
    (tmp_path / "paul_graham_essays").mkdir()
    (tmp_path / "paul_graham_essays" / "a.txt").write_text(HAY)
    (tmp_path / "wordlists").mkdir()
    for name, word in (("adjectivelist", "odd"), ("nounlist", "fish")):
        (tmp_path / "wordlists" / f"{name}.txt").write_text(f"{word}\n")
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), tmp_path / "model", BYTES)
    command = ["eval", str(tmp_path / "model"), "--suite", "needle", "--lengths", "700", "--limit", "1", "--json"]
    assert cli.main([*command, "--data-dir", str(tmp_path)]) is None
    document = json.loads(capsys.readouterr().out)
    assert [cell["task"] for cell in document["cells"]] == list(TASKS)
    assert document["keys"] == "wordlists"
