"""Training: recipe → run → loop, from a laptop to a cluster.

    from gated_deltanet.train import resolve, resume, train

    train(resolve("gdn-tiny", None, {"tokens": "20M", "data": "texts"}), "runs/tiny")
    resume("runs/tiny")  # after an interruption, as if nothing had happened

The files in the order to read them: recipe, recipes, loop, step, validation, run, data, checkpoint, parallel.
These names are imported when first used: `gdn --help` reads the settings and does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import Outcome, resume, train
    from .recipe import Recipe
    from .recipes import RECIPES, resolve

__all__ = ["RECIPES", "Outcome", "Recipe", "resolve", "resume", "train"]
MODULES = {"Recipe": "recipe", "RECIPES": "recipes", "resolve": "recipes"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{MODULES.get(name, 'loop')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
