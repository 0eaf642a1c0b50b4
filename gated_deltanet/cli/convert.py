"""`gdn convert`: another project's checkpoint as a model of ours, or ours as another's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Convert:
    """Write a checkpoint of flash-linear-attention (FLA) as a model of ours, or a model of ours as FLA's.

    Every tensor is accounted for before the first is written: what is missing, has another shape or has no place is
    named, and nothing is left behind. Memory holds one tensor at a time. docs/interop-fla.md lists the models.

    Example: gdn convert checkpoints/delta-net models/delta-net
    """

    source: Positional[Annotated[Path, arg(metavar="SOURCE")]]
    """A folder with config.json and safetensors, in one file or in shards."""
    folder: Positional[Annotated[Path, arg(metavar="FOLDER")]]
    """Where to write; there must be nothing yet."""
    to: Literal["ours", "fla", "fla-2024-12"] = "ours"
    """What to write: fla-2024-12 is FLA's layout of December 2024."""

    def run(self) -> None:
        from gated_deltanet.interop.convert import from_fla, to_fla

        if self.to == "ours":
            config = from_fla(self.source, self.folder)
        else:
            config = to_fla(self.source, self.folder, layout=self.to.removeprefix("fla").lstrip("-") or "current")
        kinds = ", ".join(dict.fromkeys(type(mixer).__name__ for mixer in config.mixers))
        print(f"{self.folder}: {config.n_layers} layers of {kinds}, {config.d_model} wide")
