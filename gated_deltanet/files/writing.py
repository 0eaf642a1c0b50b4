"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

UNFINISHED = re.compile(r"\.(\d+)\..+")  # the process, and the name to be


def write(file: Path, make: Callable[[Path], object]) -> None:
    """make: writes the file it is given, whose name is hidden; on the disk it gets its own."""
    unfinished = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        with told(file):
            make(unfinished)
            sync(unfinished)
            unfinished.replace(file)
            sync(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    content = text.encode()
    write(file, lambda unfinished: unfinished.write_bytes(content))


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Of finite numbers: others could not be read again."""
    write_text(file, json.dumps(document, indent=2, allow_nan=False) + "\n")


def as_json(document: Any) -> str:
    """For other programs: with null for what is not finite."""
    return json.dumps(finite(document), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """The same document with None, JSON's null, for NaN and ±inf, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append(file: Path, text: str) -> None:
    """A process that is killed meanwhile may leave a part of it."""
    with told(file), file.open("ab") as stream:
        stream.write(text.encode())


@contextmanager
def told(file: Path) -> Iterator[None]:
    """An error of the disk is told of the file that was to be written, not of its hidden name."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if is_full(error):
            advice = "what is finished is kept: make room, and run the same command again"
            raise OSError(f"the disk is full, {file} was not written; {advice}") from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise OSError(f"{file} could not be written: {reason or error}") from error


def is_full(error: OSError | SafetensorError) -> bool:
    """safetensors tells the number in its message only."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"(os error {number})" in str(error) for number in full)


def clear(folder: Path) -> None:
    """Remove what `write` left unfinished in a folder because its process was killed. None of ours may be writing."""
    for path in folder.glob(".*"):
        match = UNFINISHED.fullmatch(path.name)
        if match and path.is_file() and not is_running(int(match[1])):
            path.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Another than this one: whoever had its number before is dead, and in a container it is often the same."""
    if sys.platform == "win32":
        return True  # where asking would end it
    if process in (0, os.getpid()):
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True


def sync(path: Path) -> None:
    """On the disk, not only in its cache. Windows cannot do that for a folder, or a file that is only read."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
