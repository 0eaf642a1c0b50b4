import gzip
import json
import math
from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.eval.extrapolation import by_bucket, curve, find_files, texts
from gated_deltanet.eval.model import losses
from gated_deltanet.result import answer_each, read_answers

TURNS = [{"speaker": "Ann", "content": "Hello."}, {"speaker": "Sue", "content": "Bye."}]
PROMPT = "You are given a story.\n\nStory: Once upon a time.\n\nNow, answer the question based on the story: who?"
FILES = {
    "govreport/a.jsonl.gz": [{"text": "short"}, {"text": "a longer report"}],
    "qmsum/test.jsonl.gz": [{"meeting_transcripts": TURNS}],
    "longbench_mini/longbench_mini.jsonl.gz": [{"task": "narrativeqa", "prompt": PROMPT}, {"task": "trec"}],
    "qasper/papers.jsonl.gz": [{"texts": "misspelt"}],
}


@pytest.fixture
def data(tmp_path):
    for name, rows in FILES.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (tmp_path / "novels_en" / "test").mkdir(parents=True)
    (tmp_path / "novels_en" / "test" / "a.txt.gz").write_bytes(gzip.compress(b"It was night. " * 9))
    return tmp_path


@pytest.mark.parametrize("architecture", ["gdn", "gdn-h2", "transformer"])
def test_losses_do_not_depend_on_how_the_text_was_cut(architecture):
    torch.manual_seed(0)
    model = CausalLM(replace(get_preset(f"{architecture}-nano"), vocab_size=257)).eval()
    tokens = torch.randint(257, (300,)).tolist()
    with torch.no_grad():
        whole = model.loss(torch.tensor([tokens[:-1]]), torch.tensor([tokens[1:]]), reduction="none")[0].double()
    for piece in (7, 64, 299, 1000):
        torch.testing.assert_close(losses(model, tokens, piece), whole, rtol=1e-5, atol=1e-5)
    assert losses(model, tokens[:1]).numel() == 0


def test_buckets_hold_each_loss_once():
    parts = by_bucket(torch.arange(10.0), [4, 6, 20])
    assert parts == [(6, 4), (9, 2), (30, 4)]
    assert by_bucket(torch.ones(3), [4, 6]) == [(3, 3), (0, 0)]


def test_a_curve_ends_where_documents_do_and_its_error_is_of_documents():
    points = curve([[(2.0, 2), (3.0, 1)], [(6.0, 2), (0, 0)]], [2, 3])
    assert [point["perplexity"] for point in points] == pytest.approx([math.exp(2), math.exp(3)])
    assert [point["documents"] for point in points] == [2, 1]
    assert points[0]["stderr"] == pytest.approx(math.exp(2))  # means 1 and 3: 2 ± 1
    assert points[1]["stderr"] is None


def test_corpora_are_read_the_longest_document_first(data):
    assert texts("GovReport", data, None) == ["a longer report", "short"]
    assert texts("GovReport", data, 1) == ["a longer report"]
    assert texts("QMSum", data, None) == ["Ann: Hello.\nSue: Bye."]
    assert texts("NarrativeQA", data, None) == ["Once upon a time."]
    assert texts("PG19", data, None) == ["It was night. " * 9]
    with pytest.raises(ValueError, match="row 1: text is missing"):
        texts("Qasper", data, None)
    with pytest.raises(ValueError, match="no document in"):
        texts("CodeParrot", data, None)


def test_answers_are_kept_and_a_line_cut_short_is_made_again(tmp_path):
    file, asked = tmp_path / "answers.jsonl", []
    answer = lambda keys: asked.extend(keys) or [key.upper() for key in keys]  # noqa: E731
    assert list(answer_each("ab", answer, file)) == ["A", "B"]
    file.write_text(file.read_text()[:-3])
    assert list(answer_each("abc", answer, file, at_once=2)) == ["A", "B", "C"]
    assert asked == ["a", "b", "b", "c"]
    assert list(read_answers(file).values()) == ["A", "B", "C"]


def test_the_command_draws_what_there_is_and_names_what_there_is_not(data, tmp_path, capsys):
    model, out = CausalLM(replace(get_preset("gdn-nano"), vocab_size=257)), tmp_path / "out"
    save(model, tmp_path / "model", byte_tokenizer())
    command = ["eval", str(tmp_path / "model"), "--suite", "extrapolation", "--data-dir", str(data), "--out", str(out)]
    assert cli.main([*command, "--max-length", "50"]) is None
    assert "Left out: Qasper" in capsys.readouterr().out
    document = json.loads((out / "extrapolation.json").read_text())
    assert set(document["corpora"]) == {"GovReport", "QMSum", "NarrativeQA", "PG19"}
    assert document["corpora"]["PG19"]["points"][0]["tokens"] == 50
    assert (out / "extrapolation.png").stat().st_size > 1000
    assert "Gated DeltaNet-H1 1.3B (paper)" in (out / "extrapolation.md").read_text()


def test_a_corpus_is_read_under_any_name_and_what_is_not_is_told(tmp_path):
    (tmp_path / "qasper").mkdir()
    (tmp_path / "qasper" / "all.jsonl").write_text('{"text": "A paper."}\n')
    (tmp_path / "qasper" / "asked.jsonl").write_text('{"question": "Why?"}\n')
    assert texts("Qasper", tmp_path, None) == ["A paper."]
    assert find_files("Qasper", tmp_path).left_out == {"asked.jsonl": "row 1: text is missing"}
