import subprocess
import sys
import time
from pathlib import Path

import pytest

from gated_deltanet.data.workers import in_order

SCRIPT = """
import os, time
from pathlib import Path
from gated_deltanet.data.workers import in_order
def linger(i):
    Path(str(os.getpid())).touch()
    time.sleep(60)
if __name__ == "__main__":
    list(in_order({function}, range(1, 4), 2))
"""


def start(function: str, folder: Path) -> subprocess.Popen:
    (folder / "main.py").write_text(SCRIPT.format(function=function))
    return subprocess.Popen([sys.executable, "main.py"], cwd=folder, stderr=subprocess.PIPE, text=True)


def wait_until(condition) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_the_order_of_the_tasks(workers):
    assert list(in_order(abs, range(-9, 0), workers)) == list(range(9, 0, -1))


def test_error_of_a_task_is_raised_and_later_tasks_are_not_taken():
    taken = []
    tasks = (taken.append(i) or i for i in (1, 0, *range(2, 1000)))
    with pytest.raises(ZeroDivisionError):
        list(in_order((1).__truediv__, tasks, 2))
    assert len(taken) < 10


def test_worker_that_is_killed_is_told(tmp_path):
    _, err = start("os._exit", tmp_path).communicate()
    assert "OSError: a worker was killed, perhaps for want of memory; run again with fewer workers" in err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look for processes in")
def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    process = start("linger", tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2)
    workers = [path.name for path in tmp_path.glob("[0-9]*")]
    process.kill()
    process.communicate()
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def is_running(pid: str) -> bool:
    """Not if nobody has yet asked how it ended."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
