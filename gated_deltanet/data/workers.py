"""Work shared by processes, with the results in the order of the tasks."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], tasks: Iterable[T], workers: int) -> Iterator[R]:
    """function(task) of each task. With one worker in this process; else a task more than there are workers waits."""
    if workers == 1:
        yield from map(function, tasks)
        return
    running: deque[Future[R]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin) as pool:
        try:
            for task in tasks:
                running.append(pool.submit(function, task))
                if len(running) > workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise OSError("a worker was killed, perhaps for want of memory; run again with fewer workers") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def begin() -> None:
    """Of a worker: one thread, an interruption is its parent's business, and it does not outlive its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the only way to tell the library
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
