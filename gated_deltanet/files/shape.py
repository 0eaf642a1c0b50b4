"""Whether a value that was read has the type it should have."""

from dataclasses import fields, is_dataclass
from reprlib import repr as short
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

WHOLE = "the document"
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
WORDS |= {list: "a list", tuple: "a list", dict: "an object"}


def shaped(value: Any, kind: Any, name: str = WHOLE) -> Any:
    """A value of JSON or TOML as the type `kind`; a ValueError with the name of the part that is of another.

    kind: Any, int, float, str, bool, several of these (int | None), list[X], tuple[X, ...], dict[str, X], a TypedDict,
    which may hold more, or a dataclass, which may not.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return one_of(value, parts, name)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(shaped(x, parts[0], f"{name}[{i}]") for i, x in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: shaped(x, parts[1], inner(name, key)) for key, x in value.items()}
    if (is_dataclass(kind) or is_typeddict(kind)) and isinstance(value, dict):
        return record(value, kind, name)
    if kind is float and type(value) is int:
        return float(value)
    if origin is not None or type(value) is not kind:
        raise ValueError(f"{name} is {short(value)}, expected {word(kind)}")
    return value


def one_of(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    if type(value) in kinds:
        return value
    raise ValueError(f"{name} is {short(value)}, expected {' or '.join(map(word, kinds))}")


def record(value: dict[str, Any], kind: Any, name: str) -> Any:
    kinds = get_type_hints(kind)
    if missing := [key for key in required(kind) if key not in value]:
        raise ValueError(f"{inner(name, missing[0])} is missing, expected all of {', '.join(required(kind))}")
    found = {key: shaped(x, kinds.get(key, Any), inner(name, key)) for key, x in value.items()}
    if not is_dataclass(kind):
        return found
    if others := [key for key in value if key not in kinds]:
        raise ValueError(f"{inner(name, others[0])} is unknown, expected only {', '.join(kinds)}")
    return kind(**found)  # pyright: ignore[reportCallIssue]


def required(kind: Any) -> list[str]:
    if is_dataclass(kind):
        return [each.name for each in fields(kind)]
    return [name for name in get_type_hints(kind) if name in kind.__required_keys__]


def inner(name: str, key: str) -> str:
    return key if name == WHOLE else f"{name}.{key}"


def word(kind: Any) -> str:
    return WORDS.get(get_origin(kind) or kind, "an object")
