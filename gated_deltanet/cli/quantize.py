"""`gdn quantize`: a saved model with weights of fewer bits, as a folder of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Quantize:
    """Write a saved model again with weights of fewer bits: less memory, and faster to generate with on a CPU.

    What gates, norms and convolutions are made of stays in float32. The folder is read by everything that reads saved
    models: gdn generate, gdn eval, gated_deltanet.load, and transformers (docs/inference.md).

    Example: gdn quantize runs/tiny --weights int8 --out runs/tiny-int8
    """

    checkpoint: Positional[Path]
    """The folder of a saved model."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Write to this folder; there must be nothing yet."""
    weights: str = "int8"
    """The format of projections, embedding and head: bfloat16, int8, or int4 (embedding and head then are int8)."""

    def run(self) -> None:
        from gated_deltanet.interop.folder import WEIGHTS, quantise

        quantise(self.checkpoint, self.out, self.weights)
        before, after = ((folder / WEIGHTS).stat().st_size for folder in (self.checkpoint, self.out))
        print(f"{self.out}: {self.weights}, {show(after)}; {self.checkpoint} has {show(before)}")


def show(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
