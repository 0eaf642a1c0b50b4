"""A plugin for pytest: `interop.fla` in the place of FLA's functions, before a test imports one of them."""

import importlib
import pkgutil

import fla.ops  # pyright: ignore[reportMissingImports]

from gated_deltanet.interop import fla as ours

for package in (fla.ops, *(m.name for m in pkgutil.iter_modules(fla.ops.__path__, "fla.ops.") if m.ispkg)):
    module = importlib.import_module(package) if isinstance(package, str) else package
    for name in ours.__all__:
        if hasattr(module, name):
            setattr(module, name, getattr(ours, name))
