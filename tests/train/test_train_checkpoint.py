import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from small import HERE, losses, resume_to_end, run_to_end, small_recipe, write_texts

from gated_deltanet.train.checkpoint import checkpoints, load, save, tensors
from gated_deltanet.train.run import restore, start
from gated_deltanet.train.step import Counters


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")


@pytest.fixture(scope="module")
def original(data, tmp_path_factory):
    return run_to_end(data, tmp_path_factory.mktemp("original") / "run", tokens=192 * 4, validate_every=100)


@pytest.fixture
def run(original, tmp_path):
    """A copy that may be damaged."""
    shutil.copytree(original.folder, tmp_path / "run")
    return replace(original, folder=tmp_path / "run")


def fresh(run, tmp_path):
    """The same run, knowing nothing."""
    return start(run.recipe, tmp_path / "fresh", HERE)


def test_what_is_read_is_what_was_written(run, tmp_path):
    other = fresh(run, tmp_path)
    assert load(run.checkpoints, other.model, other.optimizer, HERE) == run.counters == Counters(4, 4)
    ours, theirs = tensors(other.model, other.optimizer), tensors(run.model, run.optimizer)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    steps = {float(state["step"]) for state in other.optimizer.state.values()}
    assert steps == {4.0}


def test_what_is_read_is_aligned_as_torch_allocates_it(run, tmp_path):
    other = fresh(run, tmp_path)
    load(run.checkpoints, other.model, other.optimizer, HERE)
    assert {x.data_ptr() % 64 for x in tensors(other.model, other.optimizer).values()} == {0}


def test_nothing_in_a_checkpoint_is_pickled(run):
    newest = checkpoints(run.checkpoints)[0]
    assert {path.suffix for path in newest.iterdir()} == {".safetensors", ".json"}
    assert json.loads((newest / "counters.json").read_text())["step"] == 4


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, lambda file: file.unlink()], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("pattern", ["*.safetensors", "counters.json"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(harm, pattern, run):
    expected = losses(run.folder)
    harm(next(checkpoints(run.checkpoints)[0].glob(pattern)))
    with pytest.warns(UserWarning, match="step-00000004 is passed over"):
        resume_to_end(run.folder)
    assert losses(run.folder) == expected
    resume_to_end(run.folder)  # the damaged one is gone


def test_only_damaged_checkpoints_are_an_error_and_none_is_the_beginning(run, tmp_path):
    other = fresh(run, tmp_path)
    for each in checkpoints(run.checkpoints):
        (each / "manifest.json").write_text("{")
    with (
        pytest.raises(ValueError, match="are damaged"),
        pytest.warns(UserWarning, match=r"manifest\.json is missing or damaged"),
    ):
        load(run.checkpoints, other.model, other.optimizer, HERE)
    assert load(other.checkpoints, other.model, other.optimizer, HERE) == Counters()


def test_the_newest_are_kept_and_what_a_killed_process_left_is_removed(run):
    left = run.checkpoints / ".step-00000003.unfinished"
    left.mkdir()
    for step in (5, 6, 7):
        save(run.checkpoints, run.model, run.optimizer, Counters(step), keep=2, place=HERE)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000006", "step-00000007"]


def test_a_full_disk_is_an_error_and_leaves_the_last_checkpoint(run):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"checkpoint of step 5 could not be written: .*[Ff]ile too large"):
            save(run.checkpoints, run.model, run.optimizer, Counters(5), keep=2, place=HERE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in checkpoints(run.checkpoints)] == ["step-00000004", "step-00000002"]
    assert not list(run.checkpoints.glob(".*"))


def test_a_checkpoint_of_another_model_is_an_error(run, data, tmp_path):
    other = start(small_recipe(data, tokenizer="bpe:300"), tmp_path / "other", HERE)
    with pytest.raises(ValueError, match="is not of this model"):
        load(run.checkpoints, other.model, other.optimizer, HERE)


def test_a_run_killed_before_its_first_checkpoint_is_taken_up_from_the_beginning(run):
    expected = losses(run.folder)
    shutil.rmtree(run.checkpoints)
    (run.folder / "run.json").unlink()
    resume_to_end(run.folder)
    assert losses(run.folder) == expected


def test_resuming_removes_what_a_killed_process_left(run):
    expected = sorted(path.name for path in run.folder.iterdir())
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1, text=True, check=True)
    for folder in (run.folder, run.folder / "samples"):
        (folder / f".{killed.stdout.strip()}.model.safetensors").write_bytes(b"half a model")
    restore(run.folder, HERE)
    assert sorted(path.name for path in run.folder.iterdir()) == expected
    assert not list((run.folder / "samples").glob(".*"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", "null", "run.json: the document is None, expected an object"),
        ("run.json", '{"data": 3}', "run.json: parameters is missing, expected all of data, parameters, versions"),
        ("recipe.toml", "", "recipe.toml: Recipe: preset is missing"),
        (
            "recipe.toml",
            'preset = "gdn-nano"\ntokens = []',
            r"recipe.toml: Recipe: tokens is \[\], expected a whole number",
        ),
        ("metrics.jsonl", '{"step": 1}\n{"loss": 2}\n', "metrics.jsonl, line 2: step is missing"),
        ("metrics.jsonl", "[" * 10**5 + "\n", "metrics.jsonl, line 1 is not JSON"),
    ],
)
def test_a_run_with_a_spoilt_file_is_refused_with_its_name(name, content, message, run):
    (run.folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        restore(run.folder, HERE)


def test_a_run_that_cannot_start_leaves_nothing(data, tmp_path):
    with pytest.raises(ValueError, match="the corpus has no documents"):
        start(small_recipe(data, valid=1e-9), tmp_path / "run", HERE)
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_start_where_one_is(run):
    with pytest.raises(ValueError, match="is not empty: go on with --resume"):
        start(run.recipe, run.folder, HERE)
