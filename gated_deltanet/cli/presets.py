"""`gdn presets`: the models that have a name, and what each costs."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from tyro.conf import arg


@dataclass(frozen=True)
class Presets:
    """List the models that have a name, with what each costs.

    Parameters (tied embeddings once); the recurrent state of one sequence, whatever its length; its KV cache after
    4,096 and 32,768 tokens, in bfloat16; forward FLOPs per token in a sequence of 4,096.

    Example: gdn presets --size tiny
    """

    size: Annotated[str | None, arg(metavar="SIZE")] = None
    """List only one size: 1.3b, 400m, small, tiny, nano, 0.4b (the official code's) or 500m (table S.2)."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def run(self) -> None:
        import torch  # noqa: F401 first, so that its objects are there

        from gated_deltanet.cli.output import print_json, print_table

        gc.freeze()  # they stay: the garbage collector walking over them takes longer than all that follows
        rows = [row(name) for name in names(self.size)]
        if self.json:
            return print_json(rows)
        columns, *table = right_aligned([COLUMNS, *by_size(rows)])
        print_table("Models that have a name", columns, table, notes=NOTES)


COLUMNS = ["preset", "parameters", "state MiB", "KV 4K", "KV 32K", "GFLOPs"]
NOTES = [
    "state, KV: MiB of one sequence. GFLOPs: forward, per token of 4,096.",
    'In Python: gated_deltanet.CausalLM(gated_deltanet.get_preset("gdn-tiny"))',
]


def names(size: str | None) -> list[str]:
    from gated_deltanet.models.presets import PRESETS
    from gated_deltanet.naming import unknown

    sizes = list(dict.fromkeys(map(size_of, PRESETS)))
    if size is not None and size not in sizes:
        raise unknown("--size", size, sizes)
    found = [name for name in PRESETS if size in (None, size_of(name))]
    return sorted(found, key=lambda name: sizes.index(size_of(name)))


def row(name: str) -> dict[str, Any]:
    from gated_deltanet.models import count, get_preset

    config = get_preset(name)
    return {
        "name": name,
        "parameters": count.parameters(config),
        "state_bytes": count.state_bytes(config),
        "kv_bytes_4k": count.kv_bytes(config, 4096),
        "kv_bytes_32k": count.kv_bytes(config, 32768),
        "flops_per_token": count.flops_per_token(config, 4096),
        "layers": config.n_layers,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "vocab_size": config.vocab_size,
        "mixers": [type(mixer).__name__ for mixer in config.mixers],
    }


def by_size(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The cells of each row, with an empty line between sizes."""
    for i, (_, group) in enumerate(groupby(rows, lambda row: size_of(row["name"]))):
        if i:
            yield [""] * len(COLUMNS)
        yield from map(cells, group)


def right_aligned(table: list[list[str]]) -> list[list[str]]:
    """All columns but the first."""
    widths = [0, *(max(map(len, column)) for column in list(zip(*table, strict=True))[1:])]
    return [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in table]


def size_of(name: str) -> str:
    return name.rpartition("-")[2]


def cells(row: dict[str, Any]) -> list[str]:
    memory = (row["state_bytes"], row["kv_bytes_4k"], row["kv_bytes_32k"])
    return [
        row["name"],
        f"{row['parameters'] / 1e6:.2f} M" if row["parameters"] < 1e9 else f"{row['parameters'] / 1e9:.3f} B",
        *(mebibytes(x) for x in memory),
        f"{row['flops_per_token'] / 1e9:.3g}",
    ]


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.3g}" if size < 1000 * 2**20 else f"{size / 2**20:,.0f}"
