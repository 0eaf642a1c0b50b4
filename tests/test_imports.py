"""Imports point down: the layers of the package, top first. docs/architecture.md is the map."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gated_deltanet

PACKAGE = Path(gated_deltanet.__file__).parent
LAYERS = (
    ("cli",),
    ("demo", "reproduce"),
    ("bench",),
    ("train", "eval", "synthetic", "inspection"),
    ("plan",),
    ("interop",),
    ("models",),
    ("data",),
    ("layers",),
    ("ops",),
    ("result",),
    ("files", "fields", "matmul", "objectives"),
    ("naming", "quantity", "paper"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
TOP = {"__init__", "__main__"}  # which say what the package offers

MODULES = sorted(PACKAGE.rglob("*.py"))


def part(file: Path) -> str:
    """The subpackage or module at the top that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(file: Path) -> Iterator[tuple[str, ...]]:
    """What of the package a file imports, also inside functions: ("ops", "native", "load")."""
    here = file.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ("gated_deltanet", *here)[: len(here) + 2 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == "gated_deltanet" and len(name) > 1)


def module_of(name: tuple[str, ...]) -> Path | None:
    """The file that a name is or is defined in; None: the `__init__` of a package."""
    for length in range(len(name), 0, -1):
        if (file := PACKAGE.joinpath(*name[:length]).with_suffix(".py")).exists():
            return file
    return None


def level(name: str) -> int:
    """Of a part; what else the package offers at its top are models and their folders."""
    return LEVEL.get(name, LEVEL["interop"])


def test_every_part_has_its_layer():
    assert {part(file) for file in MODULES} == LEVEL.keys() | TOP


@pytest.mark.parametrize("name", LEVEL)
def test_imports_point_down(name):
    files = [file for file in MODULES if part(file) == name]
    imports = {(str(file.relative_to(PACKAGE)), other) for file in files for other, *_ in imported_names(file)}
    assert not {(file, other) for file, other in imports if other != name and level(other) <= LEVEL[name]}


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {file: {module_of(name) for name in imported_names(file)} - {file, None} for file in MODULES}
    list(TopologicalSorter(graph).static_order())
