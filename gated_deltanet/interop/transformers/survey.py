"""What `accelerate_transformers` would do to the installed transformers."""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from .acceleration import Replacement, replacements_in

DELTA_RULE = re.compile(r"^def \w*chunk\w*_delta_\w+\(", re.MULTILINE)


class Row(NamedTuple):
    """A name of a modeling module, what takes its place on a CPU, or why nothing does."""

    module: str
    name: str
    becomes: str | None
    stays: str | None


def survey() -> list[Row]:
    """Of every modeling module that defines a delta rule: a row for each name that is replaced, or one for why not."""
    return [row for name in modules_with_delta_rules() for row in rows(name)]


def modules_with_delta_rules() -> list[str]:
    """Found by what their sources define, so that only these are imported."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("there is no transformers: pip install transformers")
    files = sorted((Path(spec.origin).parent / "models").glob("*/modeling_*.py"))
    return [f"transformers.models.{file.parent.name}.{file.stem}" for file in files if DELTA_RULE.search(text(file))]


def text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def rows(name: str) -> list[Row]:
    module = import_module(name)
    found = replacements_in(module)
    if not found:
        rule = DELTA_RULE.search(inspect.getsource(module))
        what = rule.group().removeprefix("def ").removesuffix("(") if rule else ""
        return [Row(name, what, None, "not the gated delta rule: it decays each key by its own factor")]
    return [Row(name, shown(replacement), replacement.by, None) for replacement in found]


def shown(replacement: Replacement) -> str:
    """`Layer.attribute` or `function`; of a class whose only change is its forward, the class."""
    holder, name = replacement.holder, replacement.name
    if not inspect.isclass(holder):
        return name
    return holder.__name__ if name == "forward" else f"{holder.__name__}.{name}"
