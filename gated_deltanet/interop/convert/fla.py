"""Checkpoints of flash-linear-attention (FLA) as ours, and ours as FLA's.

GatedDeltaNet, DeltaProduct, DeltaNet, RetNet, HGRN2, Mamba2, Mamba, Samba, linear attention, Transformer, and hybrids
of them with attention.

Every tensor is accounted for before the first is written, and memory holds one tensor at a time.
"""

from collections.abc import Mapping
from pathlib import Path

from gated_deltanet import files
from gated_deltanet.interop import folder as ours
from gated_deltanet.layers.hgrn2 import HGRN2
from gated_deltanet.models.config import ModelConfig

from .accounting import HEAD, check, check_tied, read_ours, read_values, shapes_of, token_ids
from .checkpoint import Piece, Source, copy_beside, new_folder, read_sources, write_weights
from .fla_config import infer
from .fla_names import BOUNDS, Layout, find_layout, to_ours
from .fla_names import to_fla as to_fla_names
from .fla_values import describe

LAYOUTS = {"current": Layout(), "2024-12": Layout(fused_mlp=True, unused_D=True)}


def from_fla(source: str | Path, folder: str | Path) -> ModelConfig:
    """Write FLA's checkpoint, of any layout, as a folder that `gated_deltanet.load` reads."""
    source, folder = Path(source), Path(folder)
    sources = read_sources(source)
    config, pieces = plan_from_fla(source, sources)
    with new_folder(folder) as unfinished:
        write_weights(unfinished, pieces, sources)
        copy_beside(source, unfinished)
        files.write_json(unfinished / ours.CONFIG, ours.to_json(config))
    return config


def to_fla(
    source: str | Path, folder: str | Path, *, layout: str = "current", shard_bytes: int | None = 5 * 10**9
) -> ModelConfig:
    """Write a model of ours as FLA's checkpoint. layout: "current" or "2024-12"."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, expected one of {', '.join(LAYOUTS)}")
    source, folder = Path(source), Path(folder)
    config, sources, expected = read_ours(source)
    values = describe(config, token_ids(source), old=layout != "current")
    pieces = to_fla_names(config, expected, LAYOUTS[layout], ours.PREFIX)
    with new_folder(folder) as unfinished:
        write_weights(unfinished, pieces, sources, shard_bytes)
        copy_beside(source, unfinished)
        files.write_json(unfinished / ours.CONFIG, values)
    return config


def plan_from_fla(source: Path, sources: Mapping[str, Source]) -> tuple[ModelConfig, list[Piece]]:
    """The model, and its tensors as made of FLA's."""
    values = read_values(source, "FLA")
    with files.naming(source):
        config = infer(values, {name: x.shape for name, x in sources.items()})
    layout = find_layout(sources)
    pieces, expected = to_ours(config, shapes_of(config, len(sources), source), layout, ours.PREFIX)
    check(source, sources, expected, unread(config, sources, layout))
    if config.tied and HEAD in sources:
        (embedding,) = next(piece.sources for piece in pieces if piece.name.endswith("embedding.weight"))
        check_tied(source, sources[HEAD], sources[embedding])
    return config, pieces


def unread(config: ModelConfig, sources: Mapping[str, Source], layout: Layout) -> set[str]:
    """What FLA's model holds and does not use."""
    names = {HEAD} if config.tied else set()
    names |= {name for name in sources if layout.unused_D and name.endswith(".attn.D")}
    return names | ({BOUNDS} if config.n_layers == 1 and isinstance(config.mixer(0), HGRN2) else set())
