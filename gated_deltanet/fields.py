"""Checks of a config's fields, with messages that name the config, the field, what was found and what is expected."""

from collections.abc import Iterable
from math import inf
from typing import Any

from gated_deltanet.naming import unknown


def check_sizes(config: Any, *names: str, least: int = 1) -> None:
    """Each named field of the dataclass `config` is a whole number ≥ least, or None where its type says so."""
    for name in names:
        value, optional = getattr(config, name), isinstance(None, config.__dataclass_fields__[name].type)
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            expected = f"a whole number, at least {least}" + (", or None" if optional else "")
            raise ValueError(f"{type(config).__name__}: {name} is {value!r}, expected {expected}")


def check_switches(config: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{type(config).__name__}: {name} is {getattr(config, name)!r}, expected True or False")


def check_choice(config: Any, name: str, choices: Iterable[str]) -> None:
    value = getattr(config, name)
    if not isinstance(value, str) or value not in choices:
        raise unknown(f"{type(config).__name__}: {name}", value, choices)


def check_positive(config: Any, name: str, most: float = inf) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most or value == inf:
        limit = " and finite" if most == inf else f" and at most {most:g}"
        raise ValueError(f"{type(config).__name__}: {name} is {value!r}, expected more than 0{limit}")


def check_multiple(config: Any, name: str, of: str) -> None:
    value, unit = getattr(config, name), getattr(config, of)
    if value is not None and value % unit:
        raise ValueError(f"{type(config).__name__}: {name} is {value}, expected a multiple of {of}, {unit}")
