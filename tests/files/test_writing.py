import errno
import os
import signal
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from gated_deltanet.files import append, clear, write, write_json, write_text


def refuse(error):
    def make(file):
        file.write_text("half")
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"the disk is full, .*/a\.txt was not written"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), r"the disk is full, .*/a\.txt"),
        (SafetensorError("I/O error: File too large (os error 27)"), r"/a\.txt could not be written: .*too large"),
        (PermissionError(errno.EACCES, "Permission denied"), r"/a\.txt could not be written: Permission denied"),
        (ZeroDivisionError("of make"), "of make"),
    ],
)
def test_what_cannot_be_written_is_told_and_leaves_the_old_file(error, message, tmp_path):
    write_text(tmp_path / "a.txt", "old α\r\n")
    with pytest.raises((OSError, ZeroDivisionError), match=message):
        write(tmp_path / "a.txt", refuse(error))
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "old α\r\n".encode()


def test_a_folder_that_is_not_there_is_told_with_the_files_own_name(tmp_path):
    for write_to in (write_text, append):
        with pytest.raises(OSError, match=r"/no/a\.txt could not be written: No such file or directory"):
            write_to(tmp_path / "no" / "a.txt", "a")


def test_json_that_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())


HANGING = """
from pathlib import Path
from gated_deltanet.files import write
def make(file):
    file.write_text("half")
    print("begun", flush=True)
    input()
write(Path(%r), make)
"""


def hanging(file):
    """A process in the middle of writing, until it reads a line."""
    command = [sys.executable, "-c", HANGING % str(file)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_only_what_dead_processes_left_is_cleared(tmp_path):
    file = tmp_path / "model.safetensors"
    with hanging(file) as dead, hanging(file) as alive:
        dead.kill()
        assert dead.wait() == -signal.SIGKILL
        for name in (f".{os.getpid()}.config.json", f".{10**40}.a", ".a.1", ".1", ".hidden.txt", "1.a"):
            (tmp_path / name).write_text("a")
        (tmp_path / f".{dead.pid}.folder").mkdir()
        assert (tmp_path / f".{dead.pid}.model.safetensors").read_text() == "half"
        clear(tmp_path)
        kept = {f".{alive.pid}.model.safetensors", f".{dead.pid}.folder", ".a.1", ".1", ".hidden.txt", "1.a"}
        assert {path.name for path in tmp_path.iterdir()} == kept
        alive.communicate("\n")
    assert file.read_text() == "half"  # whole, to the one that was not killed


def test_a_folder_that_is_not_there_has_nothing_to_clear(tmp_path):
    clear(tmp_path / "nowhere")
