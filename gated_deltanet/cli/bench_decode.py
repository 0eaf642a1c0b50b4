"""`gdn bench decode`: its options and its table."""

from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tyro.conf import Positional


@dataclass(frozen=True)
class Decode:
    """Measure how fast models read a text and go on with it, and how much memory that takes, against its length.

    One sequence. Attention gets slower and larger with the context; recurrence does not. The models take turns, and
    each context is judged by its best. --out writes decode.json, decode.md and, with matplotlib, decode.png.

    Example: gdn bench decode gdn transformer --size tiny --context 1K 4K 16K --out results/decode
    """

    presets: Positional[tuple[str, ...]] = ()
    """Presets, or architectures of --size; by default the paper's ten."""
    size: str = "tiny"
    """1.3b, 400m, small, tiny or nano."""
    context: tuple[str, ...] = ("1K", "2K", "4K", "8K", "16K")
    """Tokens read before the first is written."""
    dtype: str = "float32"
    """Of the weights and of what is computed: float32 or bfloat16."""
    steps: int = 32
    """Tokens written after each context; the median counts."""
    rounds: int = 3
    """Turns of each, if there is time."""
    minutes: float = 30
    """No further round begins that would end after so many."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Path | None = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.bench import decode
        from gated_deltanet.cli import results
        from gated_deltanet.cli.report import tracked

        results.check_choice(self.json, self.markdown)
        cells = cells_of(self)
        results.check_folder(self.out)
        document = results.begin(asdict(self) | {"out": None})
        limits = {"steps": self.steps, "rounds": self.rounds, "seconds": 60 * self.minutes}
        document["rows"] = decode.measure(cells, self.dtype, **limits, track=partial(tracked, what="decoding"))
        table = table_of(document)
        if self.out:
            results.write(self.out, "decode", document, *table)
            if find_spec("matplotlib"):
                from gated_deltanet.bench.decode_figure import draw

                draw(document, self.out / "decode.png")
        results.show(document, *table, NOTES, as_="json" if self.json else "markdown" if self.markdown else "table")


def cells_of(options: Decode) -> list[Any]:
    """Checked; every preset with every context."""
    from gated_deltanet.bench.decode import Cell
    from gated_deltanet.cli.results import presets_of
    from gated_deltanet.quantity import parse_size

    if options.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {options.dtype!r}, expected float32 or bfloat16")
    for name in ("steps", "rounds"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is {getattr(options, name)}, expected at least 1")
    contexts = sorted({parse_size("--context", context) for context in options.context})
    if not contexts:
        raise ValueError("--context is empty, expected some such as 4K")
    return [Cell(preset, context) for preset in presets_of(options.presets, options.size) for context in contexts]


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
