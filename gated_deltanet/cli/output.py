"""What verbs print and write: tables for people, with `--json` one document for programs, with `--out` files; bars."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from gated_deltanet.files import as_json, write_text

T = TypeVar("T")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()
) -> None:
    """Cells are printed as `str` gives them: brackets are text, not markup."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    console.print(table)
    for note in notes:
        console.print(Text(note))


def print_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(as_markdown(title, columns, rows))


def as_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = (f"| {' | '.join(map(str, row))} |" for row in (columns, ["---"] * len(columns), *rows))
    return "\n".join([title, "", *lines])


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr that tells how far they are and how long the rest will take."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def print_json(document: dict[str, Any] | list[dict[str, Any]]) -> None:
    print(as_json(document))


def check_out(file: Path, *endings: str, option: str = "--out") -> None:
    """Before the work, whose result would be lost: that the file can be written, and is named as what it will be."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ValueError(f"{option} is {file}, expected a file in a folder that exists")
    if file.suffix.lower() not in endings:
        raise ValueError(f"{option} is {file}, expected a name that ends with {' or '.join(endings)}")


def write_document(file: Path, document: dict[str, Any]) -> None:
    """What `print_json` prints."""
    write_text(file, as_json(document) + "\n")


def check_choice(json: bool, markdown: bool) -> None:
    if json and markdown:
        raise ValueError("--json and --markdown exclude each other")


def check_folder(out: Path | None) -> None:
    """Before the work, whose result would be lost: that there is a folder."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, expected a folder")
    out.mkdir(parents=True, exist_ok=True)


def record_run(settings: dict[str, Any]) -> dict[str, Any]:
    """What is recorded beside the rows."""
    from gated_deltanet.bench import machine

    return machine.record(settings)


def show_results(
    document: dict[str, Any],
    title: str,
    columns: list[str],
    cells: list[list[str]],
    notes: list[str],
    *,
    json: bool,
    markdown: bool,
) -> None:
    if json:
        print_json(document)
    elif markdown:
        print_markdown(title, columns, cells)
    else:
        print_table(title, columns, cells, notes=[*notes, *remarks(document)])


def remarks(document: dict[str, Any]) -> list[str]:
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


def write_results(
    out: Path, name: str, document: dict[str, Any], title: str, columns: list[str], cells: list[list[str]]
) -> None:
    """DIR/name.json and DIR/name.md; the picture is drawn apart."""
    write_document(out / f"{name}.json", document)
    notes = "\n".join(f"- {note}" for note in remarks(document))
    write_text(out / f"{name}.md", f"{as_markdown(title, columns, cells)}\n\n{notes}\n")
