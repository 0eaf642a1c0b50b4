"""A recipe as a TOML file: read as anyone writes one, written with what each setting means."""

import ast
import inspect
import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from .recipe import Recipe, to_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read(file: Path) -> dict[str, Any]:
    """The settings in a file, not yet checked."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from error


def text(recipe: Recipe) -> str:
    lines = (f"{name} = {literal(value)}  # {meanings()[name]}" for name, value in to_values(recipe).items())
    return "\n".join(lines) + "\n"


def literal(value: str | bool | int | float) -> str:
    """JSON's is TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@cache
def meanings() -> dict[str, str]:
    """What stands below each field of `Recipe`, on one line."""
    (recipe,) = ast.parse(inspect.getsource(Recipe)).body
    assert isinstance(recipe, ast.ClassDef)
    found = {}
    for pair in pairwise(recipe.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = " ".join(meaning.split())
    return found
