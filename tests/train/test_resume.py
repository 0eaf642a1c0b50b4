import os
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from small import VALUES, learnt, losses, options, resume_to_end, run_to_end, start_gdn, write_texts

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
    draw, command = random.Random(0), ["train", "gdn-nano", *options(**values, data=data), "--out", folder]
    said = folder.with_suffix(".txt")
    for _ in range(kills):
        seen = set(folder.glob("checkpoints/step-*"))
        process = start_gdn(*command, said=said)
        while process.is_alive() and not set(folder.glob("checkpoints/step-*")) - seen:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, said.read_text()
        command = ["train", "--resume", folder]
    process = start_gdn(*command, said=said)
    process.join()
    assert process.exitcode == 0, said.read_text()


@pytest.mark.parametrize(("kills", "steps"), [(3, 60), pytest.param(20, 400, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_loses_nothing(kills, steps, data, tmp_path):
    values = VALUES | {"tokens": 192 * steps, "validate_every": 50, "checkpoint_every": 3}
    run_to_end(data, tmp_path / "straight", **values)
    killed_at_random(data, tmp_path / "killed", values, kills)
    assert same_end(tmp_path / "killed", tmp_path / "straight")


def test_ctrl_c_saves_and_tells_how_to_go_on(data, tmp_path, straight):
    folder, said = tmp_path / "run", tmp_path / "said.txt"
    settings = options(**VALUES | {"checkpoint_every": 1000}, data=data)
    process = start_gdn("train", "gdn-nano", *settings, "--out", folder, said=said)
    while process.is_alive() and not ((folder / "metrics.jsonl").exists() and learnt(folder)):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130, said.read_text()
    assert f"gdn train --resume {folder}" in said.read_text()
    assert 0 < len(losses(folder)) < 10
    resume_to_end(folder)
    assert losses(folder) == losses(straight)
