"""Fig. 3 on this processor: all systems train in turns, each shape once, with all threads and nothing beside them."""

from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.bench import memory
from gated_deltanet.bench.train import Cell, measure
from gated_deltanet.models import count, get_preset
from gated_deltanet.models.presets import PAPER

from ..scales import Scale
from . import described

SHAPES = ((2048, 8), (4096, 4), (8192, 2), (16384, 1))  # length, batch: half of the paper's
SIZE = "tiny"  # at which products of matrices take most of the time


class SpeedCell(NamedTuple):
    seed: int  # the number of the round

    @property
    def system(self) -> str:
        return "speed"

    @property
    def threads(self) -> int:
        return 0

    def settings(self, scale: Scale) -> dict[str, Any]:
        models = {name: described(get_preset(f"{name}-{SIZE}")) for name in PAPER}
        return {"shapes": SHAPES, "size": SIZE, "models": models}

    def tokens(self, scale: Scale) -> int:
        return 0

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        began = perf_counter()
        cells = [Cell(f"{name}-{SIZE}", *shape) for shape in SHAPES for name in PAPER]
        with memory.no_page_faults():
            rows = measure(cells, "float32")
        systems = {f"speed: {name}": of_preset(f"{name}-{SIZE}", rows) for name in PAPER}
        return {"systems": systems, "seconds": {"measuring": round(perf_counter() - began)}}


def of_preset(preset: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """tokens_per_second: by the length of a row."""
    config = get_preset(preset)
    if any("left_out" in row for row in rows):
        raise ValueError(f"{preset} {next(row['left_out'] for row in rows if 'left_out' in row)}")
    speeds = {str(row["length"]): row["tokens_per_second"] for row in rows if row["preset"] == preset}
    measures = {"tokens_per_second": speeds}
    return {"parameters": count.parameters(config), "state_bytes": count.state_bytes(config), "measures": measures}
