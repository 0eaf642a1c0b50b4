import random
import shutil
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file
from small import VALUES, call, environment, gdn, learnt, losses, options, resume_to_end, run_to_end, write_texts

from gated_deltanet import load
from gated_deltanet.train.checkpoint import checkpoints


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """Ten steps without interruption."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run_to_end(data, folder)
    return folder


def same_end(folder, other):
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, other))
    return learnt(folder) == learnt(other) and all(torch.equal(ours[name], x) for name, x in theirs.items())


def test_run_folder_holds_everything_and_its_model_loads(straight):
    names = {path.name for path in straight.iterdir()}
    assert names >= {"recipe.toml", "run.json", "tokenizer.json", "metrics.jsonl", "samples", "checkpoints"}
    assert load(straight).config.vocab_size == 257
    assert len(losses(straight)) == 10
    assert len(list((straight / "samples").iterdir())) == 2
    assert len(checkpoints(straight / "checkpoints")) == 2


@pytest.mark.parametrize("left", [0, 1])
def test_resume_is_bitwise(left, data, straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    for newest in checkpoints(folder / "checkpoints")[:left]:
        shutil.rmtree(newest)
    resume_to_end(folder)
    assert same_end(folder, straight)


def test_micro_rows_may_change_when_a_run_is_taken_up_but_nothing_that_is_learnt(straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    shutil.rmtree(checkpoints(folder / "checkpoints")[0])
    resume_to_end(folder, micro_rows=1)
    torch.testing.assert_close(torch.tensor(losses(folder)), torch.tensor(losses(straight)), rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="peak_lr cannot change"):
        resume_to_end(folder, peak_lr=1.0)


def test_resume_refuses_other_data(straight, tmp_path, data):
    folder, moved = tmp_path / "run", tmp_path / "texts"
    shutil.copytree(data, moved)
    run_to_end(moved, folder, tokens=192 * 4)
    (moved / "99.txt").write_text("one more")
    with pytest.raises(ValueError, match="have changed since the run began"):
        resume_to_end(folder)


def killed_at_random(data, folder, values, kills):
    """Start the run, kill -9 it so many times at random moments, each time after a new checkpoint, and let it end."""
    draw, command = random.Random(0), gdn("train", "gdn-nano", *options(**values, data=data), "--out", folder)
    for _ in range(kills):
        seen = set(folder.glob("checkpoints/step-*"))
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not set(folder.glob("checkpoints/step-*")) - seen:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        command = gdn("train", "--resume", folder)
    done = call(command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kills", "steps"), [(3, 60), pytest.param(20, 400, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_loses_nothing(kills, steps, data, tmp_path):
    values = VALUES | {"tokens": 192 * steps, "validate_every": 50, "checkpoint_every": 3}
    run_to_end(data, tmp_path / "straight", **values)
    killed_at_random(data, tmp_path / "killed", values, kills)
    assert same_end(tmp_path / "killed", tmp_path / "straight")


def test_ctrl_c_saves_and_tells_how_to_go_on(data, tmp_path, straight):
    folder = tmp_path / "run"
    command = gdn("train", "gdn-nano", *options(**VALUES | {"checkpoint_every": 1000}, data=data), "--out", folder)
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    while not (folder / "metrics.jsonl").exists() or not learnt(folder):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130
    assert f"gdn train --resume {folder}" in said
    assert 0 < len(losses(folder)) < 10
    resume_to_end(folder)
    assert losses(folder) == losses(straight)
