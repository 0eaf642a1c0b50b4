import shutil
from pathlib import Path

import pytest
import torch
from budget import relative_error
from small import VALUES, gdn, losses, options, records, resume_to_end, run_to_end, torchrun, write_texts

from gated_deltanet import load
from gated_deltanet.train import parallel
from gated_deltanet.train.checkpoint import checkpoints

SCRIPT = Path(__file__).parent / "two_ranks.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")


@pytest.fixture(scope="module")
def single(data, tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("single") / "run"
    run_to_end(data, folder)
    return folder


@pytest.fixture(scope="module")
def of_two(data, tmp_path_factory):
    """Two runs of the same two processes, for starting them takes longest: of the command with DDP, and with FSDP."""
    folder = tmp_path_factory.mktemp("of_two")
    command = gdn("train", "gdn-nano", *options(**VALUES, data=data, parallel="ddp", out=folder / "ddp"))
    torchrun(2, SCRIPT, data, folder / "fsdp", "float32", *command[2:])
    return folder


@pytest.fixture(scope="module")
def sharded(of_two):
    return of_two / "fsdp"


def assert_same_curve(folder, single):
    assert len(losses(folder)) == 10
    torch.testing.assert_close(torch.tensor(losses(folder)), torch.tensor(losses(single)), rtol=1e-5, atol=0)
    bits, expected = ([r["valid_bits_per_byte"] for r in records(f) if "valid_loss" in r] for f in (folder, single))
    torch.testing.assert_close(torch.tensor(bits), torch.tensor(expected), rtol=1e-5, atol=0)


def without_the_newest(run, folder):
    shutil.copytree(run, folder)
    shutil.rmtree(checkpoints(folder / "checkpoints")[0])
    return folder


def test_ddp_learns_what_one_process_learns(of_two, single):
    assert_same_curve(of_two / "ddp", single)


def test_fsdp_learns_what_one_process_learns(sharded, single):
    assert_same_curve(sharded, single)
    ours, theirs = load(sharded).state_dict(), load(single).state_dict()
    for name, x in theirs.items():
        assert relative_error(ours[name], x) < 1e-3  # AdamW turns a gradient near zero into a step of either sign


def test_run_of_two_processes_is_taken_up_by_one(sharded, single, tmp_path):
    folder = without_the_newest(sharded, tmp_path / "run")
    assert len(list(checkpoints(folder / "checkpoints")[0].glob("*.safetensors"))) == 2
    resume_to_end(folder)
    assert losses(folder)[:8] == losses(sharded)[:8]
    assert_same_curve(folder, single)


@pytest.mark.slow
def test_run_of_one_process_is_taken_up_by_two(single, tmp_path):
    folder = without_the_newest(single, tmp_path / "run")
    torchrun(2, *gdn("train", "--resume", folder, "--parallel", "fsdp")[1:])
    assert losses(folder)[:8] == losses(single)[:8]
    assert_same_curve(folder, single)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["fsdp", "hsdp:2x2"])
def test_run_of_two_processes_is_taken_up_by_four(shape, sharded, single, tmp_path):
    folder = without_the_newest(sharded, tmp_path / "run")
    torchrun(4, *gdn("train", "--resume", folder, "--parallel", shape)[1:])
    assert_same_curve(folder, single)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"compile": True}, {"checkpointing": True}], ids=str)
def test_fsdp_with_compiled_and_recomputed_blocks(changes, single, tmp_path):
    folder = without_the_newest(single, tmp_path / "run")
    torchrun(2, *gdn("train", "--resume", folder, *options(parallel="fsdp", **changes))[1:])
    assert_same_curve(folder, single)


@pytest.mark.slow
def test_decays_stay_float32_in_bfloat16_training(data, tmp_path):
    torchrun(2, SCRIPT, data, tmp_path / "run", "bfloat16")
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


@pytest.mark.parametrize("name", ["fdsp", "hsdp", "hsdp:2", "hsdp:0x2", "tp"])
def test_unknown_parallelism_is_an_error(name):
    with pytest.raises(ValueError, match=r"hsdp:RxS"):
        parallel.check(name)
