import gzip
import json

import pytest
from tiny_sets import ROWS, write_rows, write_sets

from gated_deltanet.eval.commonsense import SETS as COMMONSENSE
from gated_deltanet.eval.commonsense import measure, result
from gated_deltanet.eval.data_sets import find_file, read_rows
from gated_deltanet.eval.recall import SETS as RECALL
from gated_deltanet.paper import TABLE_3


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


def test_a_file_of_the_shape_is_taken_under_any_name(tmp_path):
    folder = tmp_path / "piqa"
    write_rows(folder / "a_test.jsonl.gz", ROWS["piqa"][:1])
    write_rows(folder / "my-dev.jsonl.gz", ROWS["piqa"][:2])
    write_rows(folder / "other.jsonl.gz", ROWS["boolq"])
    write_rows(folder / "train.jsonl.gz", ROWS["piqa"])
    (folder / "notes.txt").write_text("of another kind")
    assert read_rows(COMMONSENSE["piqa"], tmp_path) == ROWS["piqa"][:2]
    assert find_file(COMMONSENSE["piqa"], tmp_path).left_out == {
        "a_test.jsonl.gz": "my-dev.jsonl.gz was taken",
        "notes.txt": "is a text, expected rows: .jsonl, .jsonl.gz, .parquet",
        "other.jsonl.gz": "row 1: goal, sol1, sol2, label is missing",
        "train.jsonl.gz": "a training split",
    }
    write_sets(tmp_path)
    assert find_file(COMMONSENSE["piqa"], tmp_path) == ([folder / "validation.jsonl.gz"], {})


def test_recall_takes_plain_jsonl_and_parquet(tmp_path):
    row = {"text": "Year: 1999\nName: Ann\n", "key": "year", "value": "1999"}
    (tmp_path / "swde").mkdir()
    (tmp_path / "swde" / "movies.jsonl").write_text(json.dumps(row) + "\n")
    (expected,) = read_rows(RECALL["swde"].data, tmp_path)
    assert expected["question"] == "Year:"
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "swde" / "movies.jsonl").unlink()
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "swde" / "0000.parquet")
    assert read_rows(RECALL["swde"].data, tmp_path) == [expected]


def test_sets_that_share_a_folder_are_not_taken_for_each_other(tmp_path):
    write_rows(tmp_path / "arc" / "easy.jsonl.gz", ROWS["arc_easy"])
    assert read_rows(COMMONSENSE["arc_easy"], tmp_path) == ROWS["arc_easy"]
    with pytest.raises(
        FileNotFoundError, match=r"no arc/ARC-Challenge.* easy.jsonl.gz is none: its name does not hold"
    ):
        read_rows(COMMONSENSE["arc_challenge"], tmp_path)


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


def perfect(name: str) -> dict:
    scores = {"acc": 1.0, "acc_norm": 0.5, "word_perplexity": 20.0, "perplexity": 30.0}
    return {"scores": scores, "stderr": {"acc": 0.01}, "rows": COMMONSENSE[name].rows, "as_in_the_paper": True}


def test_the_row_has_the_papers_columns_and_average():
    document = measure(COMMONSENSE, perfect)
    assert document["row"] == [20, 30, 100, 100, 50, 100, 100, 50, 100, 100, 87.5]
    _, columns, cells = result(document, "ours").table
    assert all(len(row) == len(columns) for row in cells)
    assert "| 100.00 |" in f"| {' | '.join(cells[0])} |"
    assert result(document, "ours").notes == []


def test_the_papers_averages_are_those_of_its_accuracies():
    for *values, average in TABLE_3.values():
        assert sum(values[2:]) / 8 == pytest.approx(average, abs=0.07)  # that of H1 is printed 0.06 lower


def test_what_is_missing_is_left_out_and_never_zero(tmp_path):
    def evaluate(name):
        return perfect(name) if name != "piqa" else read_rows(COMMONSENSE[name], tmp_path)

    document = measure(COMMONSENSE, evaluate)  # pyright: ignore[reportArgumentType]
    assert document["row"][3] is document["row"][-1] is None
    assert document["left_out"] == {"piqa": f"no piqa/validation.jsonl.gz in {tmp_path}"}
    assert json.dumps(document)
    assert any("Left out: piqa" in note for note in result(document, "ours").notes)
