"""That every tensor of a checkpoint is accounted for, and sizes that its tensors tell."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from gated_deltanet import files
from gated_deltanet.interop import folder as ours
from gated_deltanet.layers import Mixer
from gated_deltanet.models.config import ModelConfig

from .checkpoint import Source, listed, read_sources

Shapes = Mapping[str, tuple[int, ...]]  # by name
Values = Mapping[str, Any]  # of a config.json
HEAD = "lm_head.weight"


def shapes_of(config: ModelConfig, n_tensors: int, source: Path) -> Shapes:
    """Of our model. n_tensors: how many the checkpoint holds, of which a layer has one at least."""
    model = ours.without_weights(config, n_tensors, source / ours.CONFIG)
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


def read_ours(source: Path) -> tuple[ModelConfig, dict[str, Source], Shapes]:
    """A saved model of ours: its config, what its files hold, and the shapes of its tensors, which were checked."""
    config, sources = ours.load_config(source), read_sources(source)
    shapes = shapes_of(config, len(sources), source)
    check(source, sources, {ours.PREFIX + name: shape for name, shape in shapes.items()})
    return config, sources, shapes


def check(source: Path, found: Mapping[str, Source], expected: Shapes, unread: Set[str] = frozenset()) -> None:
    """That these tensors are there and have these shapes, and no others are there but what is not read."""
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    kinds = {
        "is missing": sorted(expected.keys() - found.keys()),
        "has no place in our model": sorted(found.keys() - expected.keys() - unread),
    }
    wrong += [f"{listed(names)} {what}" for what, names in kinds.items() if names]
    if wrong:
        raise ValueError(f"{source}: {'; '.join(wrong)}")


def check_tied(source: Path, head: Source, embedding: Source) -> None:
    """A tied head that is there all the same must be the embedding."""
    with files.open_tensors(head.file, "pt") as first, files.open_tensors(embedding.file, "pt") as second:
        if not torch.equal(first.get_tensor(head.name), second.get_tensor(embedding.name)):
            raise ValueError(f"{source}: {head.name} is not {embedding.name}, but tie_word_embeddings is true")


def read_values(source: Path, whose: str) -> dict[str, Any]:
    """config.json of another project, whose numbers may be NaN."""
    if not (source / ours.CONFIG).exists():
        raise FileNotFoundError(f"no {ours.CONFIG} in {source}, expected a checkpoint of {whose}")
    return files.read_json(source / ours.CONFIG, strict=False)


def token_ids(source: Path) -> dict[str, Any]:
    """Where a text begins and ends, as generation_config.json says."""
    file = source / "generation_config.json"
    found = files.read_json(file, strict=False) if file.exists() else {}
    return {name: found.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def need(mixer: Any, whose: str, **fields: Any) -> None:
    """That the mixer has these values, for other ones cannot be said there."""
    for name, value in fields.items():
        if getattr(mixer, name) != value:
            raise ValueError(f"{type(mixer).__name__}: {name} is {getattr(mixer, name)!r}, {whose} has {value!r} only")


def count_layers(shapes: Shapes, prefix: str) -> int:
    """prefix: of the names of layers, such as "model.layers."."""
    layers = [name.removeprefix(prefix).split(".")[0] for name in shapes if name.startswith(prefix)]
    n_layers = 1 + max((int(layer) for layer in layers if layer.isdecimal()), default=-1)
    if not n_layers:
        raise ValueError(f"there is no tensor {prefix}0.…, expected at least one layer")
    return n_layers


def size(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
    if name not in shapes:
        raise ValueError(f"{name} is missing")
    if len(shapes[name]) != axes:
        raise ValueError(f"{name} is {list(shapes[name])}, expected {axes} axes")
    return shapes[name]


def share(rows: int, n: Any, name: str, of: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1 or rows % n or rows < 1:
        raise ValueError(f"{name} has {rows} channels, expected a multiple of {of}, which is {n!r}")
    return rows // n


def shortest(mixers: Sequence[Mixer]) -> tuple[Mixer, ...]:
    """The fewest mixers that, tiled over the layers, give these."""
    for n in range(1, len(mixers)):
        if all(mixer == mixers[i % n] for i, mixer in enumerate(mixers)):
            return tuple(mixers[:n])
    return tuple(mixers)
