"""`gdn bench decode`: its options and its table."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Decode:
    """Measure how fast models read a text and go on with it, and how much memory that takes, against its length.

    One sequence. Attention gets slower and larger with the context; recurrence does not. The models take turns, and
    each context is judged by its best. --out writes decode.json, decode.md and decode.png.

    Example: gdn bench decode gdn transformer --size tiny --context 1K 4K 16K --out results/decode
    """

    presets: Positional[Annotated[tuple[str, ...], arg(metavar="[PRESET ...]")]] = ()
    """Measure these presets, or architectures of --size; by default the paper's ten."""
    size: str = "tiny"
    """Measure architectures of this size: 1.3b, 400m, small, tiny or nano."""
    context: tuple[str, ...] = ("1K", "2K", "4K", "8K", "16K")
    """Read so many tokens before the first is written."""
    dtype: str = "float32"
    """Compute in float32 or bfloat16, with weights of the same dtype."""
    steps: int = 32
    """Write so many tokens after each context; the median counts."""
    rounds: int = 3
    """Give each so many turns, if there is time."""
    minutes: float = 30
    """Begin no further round that would end after so many minutes."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.bench import decode
        from gated_deltanet.cli import output
        from gated_deltanet.cli.output import tracked
        from gated_deltanet.quantity import parse_size

        output.check_choice(self.json, self.markdown)
        context = [parse_size("--context", context) for context in self.context]
        output.check_folder(self.out)
        document = decode(
            self.presets,
            size=self.size,
            context=context,
            dtype=self.dtype,
            steps=self.steps,
            rounds=self.rounds,
            minutes=self.minutes,
            track=partial(tracked, what="decoding"),
        )
        document["settings"] = asdict(self) | {"out": None}
        table = table_of(document)
        if self.out:
            from gated_deltanet.bench.figures import draw_decode

            output.write_results(self.out, "decode", document, *table)
            draw_decode(document, self.out / "decode.png")
        output.show_results(document, *table, NOTES, json=self.json, markdown=self.markdown)


NOTES = [
    "read: tokens/s of the context. ms/token: of one written after it. session: MiB it holds then, KV cache or state.",
    "peak: MiB that reading took at most, besides the weights.",
]


def table_of(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    from gated_deltanet.quantity import show_count, show_size

    title = f"Reading and writing, {document['settings']['dtype']}"
    columns = ["preset", "context", "read", "ms/token", "tokens/s", "session", "peak"]
    return title, columns, [
        [
            row["preset"],
            show_size(row["context"]),
            show_count(row["prefill_tokens_per_second"]),
            f"{row['decode_ms']:.2f}",
            show_count(row["decode_tokens_per_second"]),
            f"{row['session_bytes'] / 2**20:.2f}",
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.1f}",
        ]
        for row in document["rows"]
    ]  # fmt: skip
