"""Ctrl-C and SIGTERM as a wish: the step at hand is finished and saved."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Tells whether somebody has asked. Who cannot wait may kill -9: the last checkpoint stays whole."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if not asked:  # torchrun passes on what the terminal has sent already
            print("stopping after this step …", file=sys.stderr)
        asked.append(number)

    if current_thread() is not main_thread():  # signals are for the main thread
        yield lambda: False
        return
    before = {each: signal.signal(each, note) for each in SIGNALS}
    try:
        yield lambda: bool(asked)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
