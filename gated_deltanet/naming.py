"""Errors about names, with the names that were perhaps meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: object, known: Iterable[str]) -> ValueError:
    """A ValueError with the nearest names, or if none is near with the first of all."""
    known = list(known)
    near = get_close_matches(str(name), known, n=5, cutoff=0.5)
    first = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    expected = f"perhaps {' or '.join(near)}" if near else f"one of {first}"
    return ValueError(f"{what} is {name!r}, expected {expected}")
