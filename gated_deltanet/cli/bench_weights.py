"""`gdn bench weights`: its options and its tables."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg


@dataclass(frozen=True)
class Weights:
    """Measure a model of 257 M parameters with weights in float32, bfloat16, int8 and int4: reading and writing.

    Beside it float32 as it is trained (dense), transformers and llama.cpp with a model of that shape, how fast memory
    can be read, and what matrix products allow. All take turns, and each is judged by its best. --out writes
    weights.json, weights.md and weights.png.

    Example: gdn bench weights --prefill 128 512 --batches 1 4 --out results/bench/weights
    """

    who: tuple[str, ...] = ()
    """Measure these: dense, float32, bfloat16, int8, int4, "transformers float32", "transformers bfloat16", "llama.cpp
    float32", "llama.cpp bfloat16", "llama.cpp int8"; or all."""
    prefill: tuple[int, ...] = (128, 512, 4096)
    """Read so many tokens."""
    batches: tuple[int, ...] = (1, 4, 16)
    """Continue so many sequences at once."""
    rounds: int = 3
    """Give each so many turns, if there is time."""
    minutes: float = 30
    """Begin no further round that would end after so many minutes."""
    layers: int = 12
    """Take so many of the model's twelve layers."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.bench import weights
        from gated_deltanet.bench.weights import WHO
        from gated_deltanet.cli import output

        output.check_choice(self.json, self.markdown)
        output.check_folder(self.out)
        document = weights(
            self.who or WHO,
            prefill=self.prefill,
            batches=self.batches,
            rounds=self.rounds,
            minutes=self.minutes,
            layers=self.layers,
            track=partial(output.tracked, what="measuring"),
        )
        document["settings"] = asdict(self) | {"out": None}
        table = table_of(document)
        if self.out:
            from gated_deltanet.bench.figures import draw_weights

            output.write_results(self.out, "weights", document, *table)
            draw_weights(document, self.out / "weights.png")
        output.show_results(document, *table, NOTES, json=self.json, markdown=self.markdown)


NOTES = [
    "tokens/s: of all sequences. × dense: as fast as float32 weights with torch's products.",
    "memory: the share of what reading the weights once a step allows. GEMM: of what torch.mm allows.",
    "weights, peak: MiB, of the weights and of the most that was held besides. The last rows: products of 8 rows.",
]


def table_of(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    from gated_deltanet.quantity import show_count

    read, flops = document["read_bytes_per_second"] / 1e9, document["matmul_flops"] / 1e9
    title = f"Weights of few bits: memory {read:.1f} GB/s, torch.mm {flops:.0f} GFLOP/s"
    columns = ["work", "weights of", "tokens/s", "× dense", "memory", "GEMM", "weights", "peak"]
    rows = [
        [
            row["work"],
            row["who"],
            show_count(row["tokens_per_second"]),
            shown(row["times_dense"]),
            shown(row["share_of_memory_floor"]),
            shown(row["share_of_gemm"]),
            *("" if row[of] is None else f"{row[of] / 2**20:.0f}" for of in ("weight_bytes", "peak_bytes")),
        ]
        for row in document["rows"]
    ]
    rows += [
        [
            "8 rows",
            row["who"],
            f"{row['flops_per_second'] / 1e9:.0f} GFLOP/s",
            shown(row["times_dense"]),
            shown(row["share_of_limit"]),
            "", "", "",
        ]
        for row in document["products"]
    ]  # fmt: skip
    return title, columns, rows


def shown(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"
