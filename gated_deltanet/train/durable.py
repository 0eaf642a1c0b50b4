"""Folders and files that are there whole or not at all, whatever happens while they are written."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def write_text(file: Path, text: str) -> None:
    """Under another name first."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
        sync(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(file: Path, document: dict[str, Any]) -> None:
    write_text(file, json.dumps(document, indent=2) + "\n")


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """Of each file's content, by its name; each is on the disk when this returns."""
    found = {}
    for file in files:
        sync(file)
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while piece := stream.read(2**22):
                digest.update(piece)
        found[file.name] = digest.hexdigest()
    return found


def damage(folder: Path, names: Iterable[str], told: dict[str, str]) -> str | None:
    """What is wrong with these files of a folder, whose manifest tells the hashes; None: nothing."""
    for name in names:
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if hashes([file])[name] != told[name]:
            return f"{name} is damaged"
    return None


def read_manifest(folder: Path) -> dict[str, str] | None:
    """The hash of each file; None without a whole manifest."""
    try:
        told = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def publish(unfinished: Path, folder: Path) -> None:
    """Give a folder its name."""
    sync(unfinished)
    unfinished.rename(folder)
    sync(folder.parent)


def remove(folder: Path) -> None:
    """Under a hidden name first: half a folder is never taken for a whole one."""
    hidden = folder.with_name(f".{folder.name}.removed")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def sync(path: Path) -> None:
    """On the disk, not only in its cache. Windows cannot do that for a folder, or a file that is only read."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
