"""Against lm-eval's own Hugging Face path: the same tasks on the same rows, request by request."""

import json

import pytest
from tiny_models import BYTES, ours, write
from tiny_sets import write_sets

from gated_deltanet import cli, save
from gated_deltanet.eval.commonsense import SETS as COMMONSENSE

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]  # noqa: E402
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]  # noqa: E402
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]  # noqa: E402

from gated_deltanet.eval import lm_eval_tasks  # noqa: E402
from gated_deltanet.eval.checkpoint import is_ours, open_model  # noqa: E402
from gated_deltanet.eval.harness import AnswersKept, Harness, lm_eval_model, sampling_of  # noqa: E402
from gated_deltanet.interop.huggingface import to_fast_tokenizer, to_huggingface  # noqa: E402

ARCHITECTURES = ("gdn", "gdn-h1", "mamba2", "transformer")
LENGTH = 64  # so that passages are cut, and articles take several windows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_sets(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model of each architecture."""
    made = {architecture: tmp_path_factory.mktemp(architecture) for architecture in ARCHITECTURES}
    for architecture, folder in made.items():
        save(ours(architecture), folder, BYTES)
    return made


def evaluate(model, folder) -> tuple[dict, dict]:
    """By lm-eval, without anything of ours but the rows: of every task its answers, request by request, and scores."""
    loaded = {name: lm_eval_tasks.on_files(name, data, folder, None)[0] for name, data in COMMONSENSE.items()}
    run = {
        "tasks": list(loaded.values()),
        "num_fewshot": 0,
        "bootstrap_iters": 0,
        "task_manager": lm_eval_tasks.tasks(),
    }
    results = simple_evaluate(model, **run)["results"]  # pyright: ignore
    answers = {name: [request.resps[0] for request in task.instances] for name, task in loaded.items()}
    return answers, {name: lm_eval_tasks.numbers(results[name])["scores"] for name in loaded}


def check_answers(found, expected) -> None:
    """To 1e-4 in log-likelihood."""
    for name in COMMONSENSE:
        for this, that in zip(found[name], expected[name], strict=True):
            assert this == pytest.approx(that, abs=1e-4, rel=1e-6), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_task_scores_as_lm_evals_own_path(architecture, folders, data, tmp_path):
    to_huggingface(ours(architecture), BYTES).save_pretrained(tmp_path)
    to_fast_tokenizer(BYTES).save_pretrained(tmp_path)
    model = lm_eval_model(open_model(str(folders[architecture])), max_length=LENGTH)
    assert isinstance(model, Harness)
    theirs = HFLM(pretrained=str(tmp_path), batch_size=3, max_length=LENGTH, device="cpu")
    check_answers(evaluate(model, data)[0], evaluate(theirs, data)[0])


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_other_models_have_lm_evals_own_scores(architecture, data, tmp_path, capsys):
    folder = write(architecture, tmp_path)
    theirs = HFLM(pretrained=folder, batch_size=1, max_length=LENGTH, device="cpu")
    answers, scores = evaluate(theirs, data)
    check_answers(evaluate(lm_eval_model(open_model(folder), max_length=LENGTH), data)[0], answers)
    assert cli.main(["eval", folder, "--data-dir", str(data), "--max-length", str(LENGTH), "--json"]) is None
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert set(sets) == set(COMMONSENSE)
    for name, found in sets.items():
        assert found["scores"] == pytest.approx(scores[name], rel=1e-4), name


def test_generation_is_lm_evals_own(folders):
    folder = str(folders["gdn-h1"])
    ours, theirs = (
        lm_eval_model(open_model(folder), max_length=LENGTH),
        HFLM(folder, max_length=LENGTH, device="cpu"),
    )
    settings = [{"until": ["e"], "max_gen_toks": 9}, {"until": "\n", "max_gen_toks": 12, "do_sample": False}]
    prompts = ["def main(", "a longer prompt, " * 6, "x"]
    requests = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, setting), idx=0)
        for prompt in prompts
        for setting in settings
    ]
    assert ours.generate_until(requests) == theirs.generate_until(requests)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_other_models_complete_as_in_lm_evals_own_path(architecture, tmp_path):
    """Several lengths at once, with stop strings and without."""
    model = open_model(write(architecture, tmp_path))
    theirs = HFLM(str(tmp_path), max_length=LENGTH, device="cpu", batch_size=1)
    prompts = ["def main(", "a longer prompt, " * 2, "x", "def name("]
    for stop in ((), ("e", "q")):
        settings = {"until": list(stop), "max_gen_toks": 20, "do_sample": False}
        requests = [
            Instance(request_type="generate_until", doc={}, arguments=(prompt, settings), idx=0) for prompt in prompts
        ]
        rows = [model.encode_prompt(prompt) for prompt in prompts]
        assert model.complete(rows, 20, stop) == theirs.generate_until(requests)


def test_every_text_begins_with_the_end_of_text(folders):
    model = lm_eval_model(open_model(str(folders["gdn"])), max_length=None)
    assert isinstance(model, Harness)
    assert model.tok_encode("ab") == [256, 97, 98]
    assert model._encode_pair("a", " b") == ([256, 97], [32, 98])


def test_settings_of_tasks_that_we_do_not_have_are_refused():
    assert sampling_of({"until": ["\n"], "max_gen_toks": 5}).temperature == 0
    assert sampling_of({"do_sample": True, "temperature": 0.5}).temperature == 0.5
    with pytest.raises(ValueError, match="num_beams"):
        sampling_of({"num_beams": 4})


def test_the_command_fills_a_folder_and_goes_on_from_kept_answers(folders, data, tmp_path, capsys, monkeypatch):
    command = ["eval", str(folders["gdn"]), "--data-dir", str(data), "--out", str(tmp_path)]
    assert cli.main(command) is None
    assert "Wiki." in capsys.readouterr().out
    first = json.loads((tmp_path / "commonsense.json").read_text())
    assert set(first["sets"]) == set(COMMONSENSE)
    assert first["sets"]["piqa"]["rows"] == 3
    assert not first["sets"]["piqa"]["as_in_the_paper"]
    assert "Gated DeltaNet-H2 1.3B (paper)" in (tmp_path / "commonsense.md").read_text()
    monkeypatch.setattr("gated_deltanet.eval.harness.score", None)  # nothing is left to score
    assert cli.main(command) is None
    assert json.loads((tmp_path / "commonsense.json").read_text())["row"] == first["row"]


@pytest.mark.parametrize(("task", "left"), [("piqa", 4), ("wikitext", 1)])
def test_a_killed_evaluation_has_kept_what_was_finished(task, left, folders, data, tmp_path, monkeypatch):
    from gated_deltanet.eval import harness

    score, asked, calls = harness.score, [], []

    def breaks(model, requests, **options):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        yield from list(score(model, requests, **options))[:2]
        if task == "piqa":
            raise KeyboardInterrupt

    monkeypatch.setattr(harness, "TEXTS", 1)
    model = lm_eval_model(open_model(str(folders["gdn"])), max_length=None)

    def evaluate():
        keeping = AnswersKept(model, tmp_path / "answers.jsonl")
        lm_eval_tasks.evaluate(keeping, task, COMMONSENSE[task], data, limit=None)

    monkeypatch.setattr(harness, "score", breaks)
    with pytest.raises(KeyboardInterrupt):
        evaluate()
    monkeypatch.setattr(harness, "score", lambda model, wanted, **x: asked.extend(wanted) or score(model, wanted, **x))
    evaluate()
    assert len(asked) == left


def test_other_checkpoints_are_lm_evals(folders, tmp_path, data):
    assert not is_ours(write("gpt2", tmp_path))
    assert is_ours(str(folders["gdn"]))
    model = lm_eval_model(open_model(str(tmp_path)), max_length=None)
    found = lm_eval_tasks.evaluate(model, "piqa", COMMONSENSE["piqa"], data, limit=2)
    assert (found["rows"], found["rows_held"]) == (2, 3)
