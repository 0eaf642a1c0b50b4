import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "torch_index.py"


def answer(command, **options):
    return subprocess.CompletedProcess(command, returncode=0)


def refusal(command, **options):
    return subprocess.CompletedProcess(command, returncode=1)


def no_answer(command, **options):
    raise subprocess.TimeoutExpired(command, options["timeout"])


@pytest.fixture
def printed(monkeypatch, capsys):
    """What the script prints on a machine as given; the network is never asked."""

    def run(platform="linux", nvidia_smi=None, probe=answer):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(shutil, "which", lambda name: nvidia_smi)
        monkeypatch.setattr(subprocess, "run", probe)
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_index_that_answers_is_printed_as_a_pip_option(printed):
    assert printed() == "--extra-index-url https://download.pytorch.org/whl/cpu\n"


@pytest.mark.parametrize(
    "machine",
    [{"nvidia_smi": "/usr/bin/nvidia-smi"}, {"platform": "darwin"}, {"probe": refusal}, {"probe": no_answer}],
    ids=["has a GPU", "not Linux", "refused", "silent"],
)
def test_nothing_is_printed_where_the_index_does_not_help(printed, machine):
    assert printed(**machine) == ""
