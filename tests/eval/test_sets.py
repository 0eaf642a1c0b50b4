import gzip
import json

import pytest
from tiny_sets import ROWS, write_sets

from gated_deltanet.eval import commonsense
from gated_deltanet.eval.paper import TABLE_3
from gated_deltanet.eval.sets import COMMONSENSE, read_rows


def test_every_set_is_read_as_it_was_written(tmp_path):
    write_sets(tmp_path)
    for name in ROWS.keys() - {"boolq"}:
        assert read_rows(COMMONSENSE[name], tmp_path) == ROWS[name]
    assert [row["label"] for row in read_rows(COMMONSENSE["boolq"], tmp_path)] == [1, 0, 1]


def test_wikitext_is_cut_at_titles_not_at_headings(tmp_path):
    write_sets(tmp_path)
    first, second = (row["page"] for row in read_rows(COMMONSENSE["wikitext"], tmp_path))
    assert first.startswith(" = First = \n")
    assert "= = Part = =" in first
    assert second == " = Second = \n \n Four . \n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a b"}\n{"text": ', "row 2: malformed JSON"),
        (b'{"text": "a b"}\n{"texts": "a"}', "row 2: text is missing"),
        (b"[1]", "row 1 is a list"),
        (b"", "has no rows"),
    ],
)
def test_a_row_that_is_not_as_it_should_be_is_an_error(tmp_path, content, message):
    data = COMMONSENSE["lambada_openai"]
    (tmp_path / data.file).parent.mkdir()
    (tmp_path / data.file).write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=message):
        read_rows(data, tmp_path)


def test_a_file_cut_short_is_named(tmp_path):
    write_sets(tmp_path)
    file = tmp_path / COMMONSENSE["piqa"].file
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"validation\.jsonl\.gz cannot be read"):
        read_rows(COMMONSENSE["piqa"], tmp_path)


def perfect(name: str, data) -> dict:
    scores = {"acc": 1.0, "acc_norm": 0.5, "word_perplexity": 20.0, "perplexity": 30.0}
    return {"scores": scores, "stderr": {"acc": 0.01}, "rows": data.rows, "as_in_the_paper": True}


def test_the_row_has_the_papers_columns_and_average():
    document = commonsense.run(perfect)
    assert document["row"] == [20, 30, 100, 100, 50, 100, 100, 50, 100, 100, 87.5]
    _, columns, cells = commonsense.table(document, "ours")
    assert all(len(row) == len(columns) for row in cells)
    assert "| 100.00 |" in f"| {' | '.join(cells[0])} |"
    assert commonsense.notes(document) == []


def test_the_papers_averages_are_those_of_its_accuracies():
    for *values, average in TABLE_3.values():
        assert sum(values[2:]) / 8 == pytest.approx(average, abs=0.07)  # that of H1 is printed 0.06 lower


def test_what_is_missing_is_left_out_and_never_zero(tmp_path):
    def evaluate(name, data):
        return perfect(name, data) if name != "piqa" else read_rows(data, tmp_path)

    document = commonsense.run(evaluate)
    assert document["row"][3] is document["row"][-1] is None
    assert document["left_out"] == {"piqa": f"no piqa/validation.jsonl.gz in {tmp_path}"}
    assert json.dumps(document)
    assert any("Left out: piqa" in note for note in commonsense.notes(document))
