"""What a model is made of."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from gated_deltanet.fields import check_positive, check_sizes, check_switches
from gated_deltanet.layers import MIXERS, Mixer
from gated_deltanet.naming import unknown


@dataclass(frozen=True)
class ModelConfig:
    d_model: int
    n_layers: int
    mixers: tuple[Mixer, ...]  # layer i has mixers[i % len(mixers)]
    d_ff: int  # inner width of the SwiGLU behind every mixer; 0: none, as in pure Mamba and Mamba2
    vocab_size: int
    tied: bool = True  # whether the head is the embedding
    norm_eps: float = 1e-5

    def __post_init__(self):
        check_sizes(self, "d_model", "n_layers", "vocab_size")
        check_sizes(self, "d_ff", least=0)
        check_switches(self, "tied")
        check_positive(self, "norm_eps")
        known = tuple(MIXERS.values())
        if not isinstance(self.mixers, tuple) or not self.mixers or not all(isinstance(m, known) for m in self.mixers):
            raise ValueError(f"ModelConfig: mixers is {self.mixers!r}, expected a tuple of {', '.join(MIXERS)}")
        if len(self.mixers) > self.n_layers:
            found = f"mixers holds {len(self.mixers)}"
            raise ValueError(f"ModelConfig: {found}, expected at most one for each of the {self.n_layers} layers")

    def mixer(self, layer: int) -> Mixer:
        return self.mixers[layer % len(self.mixers)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. Each mixer is its fields and its name, under "mixer"."""
        mixers = [{"mixer": type(mixer).__name__, **asdict(mixer)} for mixer in self.mixers]
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"mixers": mixers}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        check_fields(cls, values)
        if not isinstance(values["mixers"], list | tuple):
            raise ValueError(f"ModelConfig: mixers is {values['mixers']!r}, expected a list")
        return cls(**{**values, "mixers": tuple(map(mixer_from_dict, values["mixers"]))})


def mixer_from_dict(values: Mapping[str, Any]) -> Mixer:
    if not isinstance(values, Mapping) or "mixer" not in values:
        raise ValueError(f"ModelConfig: mixers holds {values!r}, expected fields with a name under 'mixer'")
    others = dict(values)
    name = others.pop("mixer")
    if not isinstance(name, str) or name not in MIXERS:
        raise unknown("ModelConfig: mixer", name, MIXERS)
    check_fields(MIXERS[name], others)
    return MIXERS[name](**others)


def changed(config: ModelConfig, changes: Iterable[str]) -> ModelConfig:
    """The config with other values in some fields: "d_ff=512", "mixers.0.gate=false"."""
    values = config.to_dict()
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign:
            raise ValueError(f"a change is {change!r}, expected NAME=VALUE, such as d_ff=512 or mixers.0.gate=false")
        *path, last = name.strip().split(".")
        holder: Any = values
        for i, part in enumerate(path):
            holder = holder[place_in(holder, part, ".".join(path[:i]))]
        holder[place_in(holder, last, ".".join(path))] = parsed(text.strip())
    return ModelConfig.from_dict(values)


def place_in(holder: Any, name: str, path: str) -> str | int:
    """Where a part of a dotted name leads: a field, or the number of a mixer. path: to what holds it."""
    if isinstance(holder, dict):
        if name not in holder:
            raise unknown(f"a field to change{f' in {path}' if path else ''}", name, holder)
        return name
    if not isinstance(holder, list):
        raise ValueError(f"a field to change is {path}.{name}, but {path} has no fields")
    if not name.isdecimal() or int(name) >= len(holder):
        raise ValueError(f"a field to change is in {path}.{name}, expected a number from 0 to {len(holder) - 1}")
    return int(name)


def parsed(text: str) -> Any:
    """A value as JSON writes it, None and True too; anything else is a text."""
    try:
        return json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text


def check_fields(cls: Any, names: Iterable[str]) -> None:
    """That the dataclass cls has fields of these names, and none without a default is missing."""
    known, required = field_names(cls)
    for name in names:
        if name not in known:
            raise unknown(f"{cls.__name__}: a field", name, known)
    if missing := [name for name in required if name not in names]:
        raise ValueError(f"{cls.__name__}: {', '.join(missing)} is missing, expected all of {', '.join(required)}")


def field_names(cls: Any) -> tuple[list[str], list[str]]:
    """All fields of a dataclass, and those without a default."""
    return [field.name for field in fields(cls)], [field.name for field in fields(cls) if field.default is MISSING]
