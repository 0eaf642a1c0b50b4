"""Checkpoints of transformers' own models as ours, and ours as theirs: folders that need no code of ours.

Llama, Mistral, Mamba, Mamba2, OLMo-Hybrid and the text model of Qwen3.5. transformers is not needed for it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gated_deltanet import files
from gated_deltanet.interop import folder as ours
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.layers.mamba import Mamba
from gated_deltanet.layers.mamba2 import Mamba2
from gated_deltanet.models.config import ModelConfig

from . import llama, mamba, olmo, qwen
from .accounting import HEAD, Shapes, Values, check, check_tied, read_ours, read_values, shapes_of, token_ids
from .checkpoint import DTYPES, Piece, Source, copy_beside, new_folder, read_sources, write_weights
from .joints import Joint, present, to_ours, to_theirs


class Architecture(NamedTuple):
    infer: Callable[[Values, Shapes], ModelConfig]
    joints: Callable[[ModelConfig], list[Joint]]
    describe: Callable[[ModelConfig], dict[str, Any]]


LLAMA, MAMBA, OLMO, QWEN = (Architecture(x.infer, x.joints, x.describe) for x in (llama, mamba, olmo, qwen))
ARCHITECTURES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "olmo_hybrid": OLMO,
    "qwen3_5_text": QWEN,
    "qwen3_5": QWEN,  # with pictures, of which the text model is taken
}
UNREAD = ("model.visual.", "mtp.")  # pictures, and guesses of later tokens
BUFFER = "rotary_emb.inv_freq"  # which transformers saved once


def from_transformers(source: str | Path, folder: str | Path) -> ModelConfig:
    """Write transformers' checkpoint, in one file or in shards, as a folder that `gated_deltanet.load` reads."""
    source, folder = Path(source), Path(folder)
    values = read_values(source, "transformers")
    model_type = values.get("model_type")
    if model_type not in ARCHITECTURES:
        raise ValueError(f"{source}: model_type is {model_type!r}, expected one of {', '.join(ARCHITECTURES)}")
    sources = renamed(read_sources(source), model_type)
    config, pieces = plan(source, text_values(values), sources, ARCHITECTURES[model_type])
    with new_folder(folder) as unfinished:
        write_weights(unfinished, pieces, sources)
        copy_beside(source, unfinished)
        files.write_json(unfinished / ours.CONFIG, ours.to_json(config))
    return config


def to_transformers(source: str | Path, folder: str | Path, *, shard_bytes: int | None = 5 * 10**9) -> ModelConfig:
    """Write a model of ours as the one of transformers that it is. Its mixers say which."""
    source, folder = Path(source), Path(folder)
    config, sources, expected = read_ours(source)
    architecture = architecture_of(config)
    values = architecture.describe(config) | token_ids(source)
    dtype = DTYPES[sources[f"{ours.PREFIX}embedding.weight"].dtype]
    pieces = to_theirs(present(architecture.joints(config), expected), expected, ours.PREFIX)
    with new_folder(folder) as unfinished:
        write_weights(unfinished, pieces, sources, shard_bytes)
        copy_beside(source, unfinished)
        if values.get("use_cache") is False:
            files.write_json(unfinished / "generation_config.json", token_ids(source) | {"use_cache": False})
        files.write_json(unfinished / ours.CONFIG, values | {"dtype": str(dtype).removeprefix("torch.")})
    return config


def architecture_of(config: ModelConfig) -> Architecture:
    kinds = {type(mixer) for mixer in config.mixers}
    if kinds == {Attention}:
        return LLAMA
    if kinds in ({Mamba}, {Mamba2}):
        return MAMBA
    if kinds in ({GatedDeltaNet}, {GatedDeltaNet, Attention}):
        return OLMO if any(getattr(mixer, "post_norm", False) for mixer in config.mixers) else QWEN
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ValueError(
        f"transformers has no model of {names} that we convert, expected one of {', '.join(ARCHITECTURES)}"
    )


def plan(
    source: Path, values: Values, sources: Mapping[str, Source], architecture: Architecture
) -> tuple[ModelConfig, list[Piece]]:
    """The model, and its tensors as made of theirs."""
    found = {name: x.shape for name, x in sources.items()}
    with files.naming(source):
        config = architecture.infer(values, found)
    shapes = shapes_of(config, len(sources), source)
    joints = present(architecture.joints(config), shapes)
    pieces, expected = to_ours(joints, shapes, found, ours.PREFIX)
    check(source, sources, expected, {HEAD} if config.tied else set())
    if config.tied and HEAD in sources:
        (embedding,) = next(joint.theirs for joint in joints if joint.ours == ("embedding.weight",))
        check_tied(source, sources[HEAD], sources[embedding])
    return config, pieces


def text_values(values: Values) -> dict[str, Any]:
    """Those of the text model, where a config has several."""
    inner = files.shaped(values.get("text_config", {}), dict[str, Any], "text_config")
    return {**values, **inner}


def renamed(sources: Mapping[str, Source], model_type: str) -> dict[str, Source]:
    """By the names the text model has, without what belongs to no text."""
    found = {}
    for name, source in sources.items():
        name = name.replace("model.language_model.", "model.", 1)
        if not name.startswith(UNREAD) and not name.endswith(BUFFER):
            found[olmo.rename(name) if model_type == "olmo_hybrid" else name] = source
    return found
