"""What a benchmark leaves behind: a document on the screen, and with `--out` a folder of JSON, Markdown and picture."""

import os
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gated_deltanet.cli.report import as_markdown, print_json, print_markdown, print_table, write_json, write_text


def check_choice(json: bool, markdown: bool) -> None:
    if json and markdown:
        raise ValueError("--json and --markdown exclude each other")


def check_folder(out: Path | None) -> None:
    """Before the work, whose result would be lost: that there is a folder, and whether there can be a picture."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, expected a folder")
    out.mkdir(parents=True, exist_ok=True)
    if find_spec("matplotlib") is None:
        print("gdn: there will be no picture: pip install matplotlib", file=sys.stderr)


def begin(settings: dict[str, Any]) -> dict[str, Any]:
    """What is recorded beside the rows."""
    from gated_deltanet.bench import machine

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # programs that ran in the last minute
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"machine": machine.describe(), "date": date, "load": load, "settings": settings}


def presets_of(names: tuple[str, ...], size: str) -> list[str]:
    """Presets by name, or architectures of this size; without names the paper's ten."""
    from gated_deltanet.models.presets import MIXERS, PRESETS, SIZES
    from gated_deltanet.naming import unknown

    if size not in SIZES:
        raise unknown("--size", size, SIZES)
    for name in names:
        if name not in PRESETS and name not in MIXERS:
            raise unknown("preset", name, [*MIXERS, *PRESETS])
    return [name if name in PRESETS else f"{name}-{size}" for name in names or list(MIXERS)[:10]]


def show(
    document: dict[str, Any], title: str, columns: list[str], cells: list[list[str]], notes: list[str], *, as_: str
) -> None:
    """as_: "json", "markdown" or "table"."""
    if as_ == "json":
        print_json(document)
    elif as_ == "markdown":
        print_markdown(title, columns, cells)
    else:
        print_table(title, columns, cells, notes=[*notes, *told(document)])


def told(document: dict[str, Any]) -> list[str]:
    """Which machine, what was left out, and whether it was busy."""
    busy, machine = document["load"], document["machine"]
    return [
        f"{machine['cpu']['model']}, threads: {machine['torch']['threads']}, {document['date']}.",
        *(
            f"Left out: {row['preset']}, {row['length']} × {row['batch']}: {row['left_out']}."
            for row in left_out(document)
        ),
        *([f"Other programs were running (load {busy:.1f}): figures may be far off."] if busy and busy > 0.5 else []),
    ]


def left_out(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if "left_out" in row]


def write(
    out: Path, name: str, document: dict[str, Any], title: str, columns: list[str], cells: list[list[str]]
) -> None:
    """DIR/name.json and DIR/name.md; the picture is drawn apart, for it needs matplotlib."""
    write_json(out / f"{name}.json", document)
    notes = "\n".join(f"- {note}" for note in told(document))
    write_text(out / f"{name}.md", f"{as_markdown(title, columns, cells)}\n\n{notes}\n")
