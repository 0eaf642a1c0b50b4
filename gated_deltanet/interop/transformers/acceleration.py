"""What of transformers' modeling modules is put in the place of what, and back."""

import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from gated_deltanet.ops import native

from . import dense, fla_backend, functions, rollback

RULE, RULE_TAKES = "torch_chunk_gated_delta_rule", ("query", "key", "value", "g", "beta")
CONVOLUTIONS = {
    "causal_conv1d_fn": functions.causal_conv1d_fn,
    "causal_conv1d_update": functions.causal_conv1d_update,
}
RULES = (RULE, "torch_recurrent_gated_delta_rule")
GLOBALS = dict.fromkeys(RULES, functions.gated_delta_rule) | CONVOLUTIONS  # a modeling module's function -> ours
PICKED_RULES = ("chunk_gated_delta_rule", "recurrent_gated_delta_rule")
PICKED = dict.fromkeys(PICKED_RULES, functions.gated_delta_rule) | CONVOLUTIONS  # an attribute of its layers -> ours
ABSENT = object()


class Replacement(NamedTuple):
    """`new` in the place of `name` of a module or class. by: what it is, for people."""

    holder: Any
    name: str
    new: Any
    by: str


class Acceleration(MetaPathFinder):
    """What `accelerate_transformers` did. Undone by `undo`, or at the end of a `with` block.

    While it lasts it stands in `sys.meta_path`, so that modules imported later are seen, too.
    """

    def __init__(self) -> None:
        self.modules: list[str] = []
        self._before: list[tuple[Any, str, Any]] = []  # holder, name, what was there

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if is_seen(fullname) else None
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec

    def replace_in(self, module: ModuleType) -> None:
        if module.__name__ == fla_backend.DOOR:
            fla_backend.register(sys.modules["fla.backends"])
        replacements = replacements_in(module)
        if replacements and not self.modules:
            replacements += [*replacements_in_caches(), *replacements_in_torch()]
        for holder, name, new, _ in replacements:
            self._before.append((holder, name, vars(holder).get(name, ABSENT)))
            setattr(holder, name, new)
        if replacements:
            self.modules.append(module.__name__)

    def undo(self) -> None:
        """Put back what was there. Twice is as good as once."""
        for register in (sys.meta_path, functions.IN_FORCE):
            if self in register:
                register.remove(self)
        while self._before:
            holder, name, before = self._before.pop()
            delattr(holder, name) if before is ABSENT else setattr(holder, name, before)
        self.modules.clear()

    def __enter__(self) -> "Acceleration":
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()


class Loader(SourceFileLoader):
    """Of a module that is imported while transformers is accelerated."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if acceleration := in_force():
            acceleration.replace_in(module)


def accelerate_transformers() -> Acceleration:
    """Let every gated delta model of the installed transformers use our ops for tensors on a CPU.

        gated_deltanet.accelerate_transformers()  # for good, or
        with gated_deltanet.accelerate_transformers(): ...

    Models made before and after, and modules imported later, are the same. What runs on other devices keeps its path.
    Assisted generation and prompt look-up work, too. Called again while it is in force, it does nothing, and so does
    the `undo` of what it then returns.
    """
    acceleration = Acceleration()
    if in_force():
        return acceleration
    if find_spec("transformers") is None:
        raise ModuleNotFoundError("accelerate_transformers: there is no transformers: pip install transformers")
    functions.IN_FORCE.append(acceleration)
    try:
        for name, module in list(sys.modules.items()):
            if is_seen(name) and isinstance(module, ModuleType):
                acceleration.replace_in(module)
    except BaseException:
        acceleration.undo()
        raise
    sys.meta_path.insert(0, acceleration)
    return acceleration


def in_force() -> Acceleration | None:
    return functions.IN_FORCE[0] if functions.IN_FORCE else None


def is_seen(name: str) -> bool:
    """Whether a module may hold something to replace."""
    return name.rpartition(".")[2].startswith("modeling_") or name == fla_backend.DOOR


def replacements_in(module: ModuleType) -> list[Replacement]:
    """Of a module that defines the gated delta rule; none of others."""
    if not defines_rule(module):
        return []
    classes = [x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, nn.Module)]
    of_functions = [found for cls in classes for found in picked(cls)] or global_functions(module)
    return [*of_functions, *norms(classes), *mlps(classes), *stateful(classes)]


def defines_rule(module: ModuleType) -> bool:
    rule = vars(module).get(RULE)
    rule = getattr(rule, "forward", rule)  # the package kernels makes modules of functions
    return callable(rule) and tuple(inspect.signature(rule).parameters)[:5] == RULE_TAKES


def global_functions(module: ModuleType) -> list[Replacement]:
    """What the module's layers call by name."""
    found = [(name, vars(module)[name]) for name in GLOBALS if callable(vars(module).get(name))]
    return [Replacement(module, name, functions.on_cpu(GLOBALS[name], own), op_of(name)) for name, own in found]


def picked(cls: type) -> list[Replacement]:
    """The functions that a layer's constructor keeps as attributes, as it did before transformers 5.15."""
    code = getattr(inspect.unwrap(vars(cls).get("__init__", object)), "__code__", None)
    names = [name for name in PICKED if code and name in code.co_names]
    found = names if PICKED_RULES[1] in names else []  # a name that only an attribute has
    return [Replacement(cls, name, Picked(name), op_of(name)) for name in found]


class Picked(property):
    """In the place of an attribute that a layer's constructor sets: what it set is kept, and used on other devices."""

    def __init__(self, name: str):
        def get(layer: nn.Module) -> Callable | None:
            own = vars(layer)[name]
            if own is None:  # no such package: the layer then has a path of its own
                return PICKED[name] if next(layer.parameters()).is_cpu else None
            return functions.on_cpu(PICKED[name], own)

        super().__init__(get, lambda layer, own: vars(layer).__setitem__(name, own))


def norms(classes: list[type]) -> list[Replacement]:
    classes = [cls for cls in classes if "forward" in vars(cls)]
    gated = [cls for cls in classes if cls.__name__.endswith("RMSNormGated")]
    others = {cls: dense.offset_of(cls) for cls in classes if cls.__name__.endswith("RMSNorm")}
    plain = {cls: offset for cls, offset in others.items() if offset is not None}
    new = {cls: functions.norm_forward(vars(cls)["forward"]) for cls in gated}
    new |= {cls: dense.norm_forward(vars(cls)["forward"], offset) for cls, offset in plain.items()}
    return [Replacement(cls, "forward", forward, "gated_rms_norm") for cls, forward in new.items()]


def mlps(classes: list[type]) -> list[Replacement]:
    found = [cls for cls in classes if dense.is_mlp(cls)]
    return [Replacement(cls, "forward", dense.mlp_forward(vars(cls)["forward"]), "swiglu") for cls in found]


def stateful(classes: list[type]) -> list[Replacement]:
    """Models that refuse assisted generation, where caches can be told to record."""
    if not replacements_in_caches():
        return []
    models = [cls for cls in classes if vars(cls).get("_is_stateful") is True]
    return [
        Replacement(cls, "_is_stateful", rollback.refuses_guesses(), "False on a CPU: caches can go back")
        for cls in models
    ]


def replacements_in_caches() -> list[Replacement]:
    """None before transformers' models asked their caches whether they record the past."""
    from transformers import cache_utils

    if not hasattr(cache_utils.Cache, "is_recording_past"):
        return []
    layer = cache_utils.LinearAttentionLayer
    return [
        Replacement(layer, "update_recurrent_state", rollback.update_recurrent_state(layer.update_recurrent_state), ""),
        Replacement(layer, "crop", rollback.crop(layer.crop), ""),
    ]


def replacements_in_torch() -> list[Replacement]:
    """All of the process's nn.Linear."""
    if native.unusable() is not None:
        return []
    return [Replacement(nn.Linear, "forward", functions.linear_forward(nn.Linear.forward), "linear")]


def op_of(name: str) -> str:
    return "short_conv" if name in CONVOLUTIONS else "gated_delta_rule"
