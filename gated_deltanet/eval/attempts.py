"""What can be evaluated, and why the rest cannot: nothing is scored as zero because it failed."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# A file, a row, a data set or a package that is not there; the hub's are OSErrors.
FAILURES = (ValueError, OSError, KeyError, ModuleNotFoundError)


class Failed(NamedTuple):
    reason: str


def attempts(names: Iterable[str], evaluate: Callable[[str], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """By name what was found, and the reason why something was not."""
    found = {name: attempt(evaluate, name) for name in names}
    left_out = {name: each.reason for name, each in found.items() if isinstance(each, Failed)}
    return {name: each for name, each in found.items() if name not in left_out}, left_out


def attempt(evaluate: Callable[[str], Any], name: str) -> Any:
    try:
        return evaluate(name)
    except FAILURES as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        return Failed(" ".join(str(message).split()) or type(error).__name__)
