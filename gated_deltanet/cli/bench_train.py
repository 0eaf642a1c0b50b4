"""`gdn bench train`: its options and its table."""

from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tyro.conf import Positional


@dataclass(frozen=True)
class Train:
    """Measure how fast models train: the paper's Fig. 3 for this machine.

    Forward, loss, backward and AdamW on random tokens. The models take turns, and each shape is judged by its best.
    MFU: 6 FLOPs for each weight that multiplies (the head among them, the embedding not) and 3 × the mixers' own, as a
    share of what torch.mm of 2048² reaches in the same run and dtype. bfloat16 is autocast over float32 weights.
    --out writes train.json, train.md and, with matplotlib, train.png, where the paper's H100 stands beside.

    Example: gdn bench train gdn transformer --size tiny --shapes 2Kx4 8Kx1 --out results/train
    """

    presets: Positional[tuple[str, ...]] = ()
    """Presets, or architectures of --size; by default the paper's ten."""
    size: str = "tiny"
    """1.3b, 400m, small, tiny or nano."""
    shapes: tuple[str, ...] = ("2Kx16", "4Kx8", "8Kx4", "16Kx2")
    """Length × batch."""
    dtype: str = "float32"
    """float32 or bfloat16."""
    rounds: int = 3
    """Turns of each, if there is time."""
    minutes: float = 60
    """No further round begins that would end after so many."""
    checkpointing: bool = False
    """Keep only the blocks' inputs for backward and run the blocks again."""
    keep_memory: bool = False
    """Freed memory stays with the process: page faults do not count (with glibc)."""
    profile: bool = False
    """Instead of speed: what share of a step are matrix products, native kernels and other ops, for the first shape."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Path | None = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.cli import results

        results.check_choice(self.json, self.markdown)
        cells = cells_of(self)
        results.check_folder(self.out)
        document = results.begin(asdict(self) | {"out": None})
        document["rows"] = profiled(self, cells) if self.profile else measured(self, cells)
        table = profile_table(document) if self.profile else speed_table(document)
        if self.out:
            results.write(self.out, "profile" if self.profile else "train", document, *table)
            if not self.profile and find_spec("matplotlib"):
                from gated_deltanet.bench.train_figure import draw

                draw(document, self.out / "train.png")
        notes = PROFILE_NOTES if self.profile else NOTES
        results.show(document, *table, notes, as_="json" if self.json else "markdown" if self.markdown else "table")


def cells_of(options: Train) -> list[Any]:
    """Checked; every preset in every shape."""
    from gated_deltanet.bench.train import Cell
    from gated_deltanet.cli.results import presets_of
    from gated_deltanet.quantity import parse_shape

    if options.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {options.dtype!r}, expected float32 or bfloat16")
    if options.rounds < 1:
        raise ValueError(f"--rounds is {options.rounds}, expected at least 1")
    shapes = [parse_shape("--shapes", shape) for shape in options.shapes]
    if not shapes:
        raise ValueError("--shapes is empty, expected some such as 2Kx16")
    return [Cell(preset, *shape) for preset in presets_of(options.presets, options.size) for shape in shapes]


def measured(options: Train, cells: list[Any]) -> list[dict[str, Any]]:
    from contextlib import nullcontext

    from gated_deltanet.bench import memory, train
    from gated_deltanet.cli.report import tracked

    with memory.no_page_faults() if options.keep_memory else nullcontext():
        return train.measure(
            cells,
            options.dtype,
            rounds=options.rounds,
            seconds=60 * options.minutes,
            checkpointing=options.checkpointing,
            track=partial(tracked, what="training"),
        )


def profiled(options: Train, cells: list[Any]) -> list[dict[str, Any]]:
    from gated_deltanet.bench.profile import shares
    from gated_deltanet.cli.report import tracked

    first = list({cell.preset: cell for cell in reversed(cells)}.values())[::-1]
    return [shares(cell, options.dtype) for cell in tracked(first, "profiling")]


NOTES = [
    "MFU: of what torch.mm reached in the same run and dtype. GiB: the most memory a step held, weights included.",
    "flat: speed at the longest length against the shortest, of the same model.",
]
PROFILE_NOTES = ["Shares of the time of one step. native: our C++ kernels, and torch's fused attention."]


def speed_table(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    from gated_deltanet.quantity import show_count, show_size

    rows = [row for row in document["rows"] if "left_out" not in row]
    title = f"Training speed, {document['settings']['dtype']}"
    columns = ["preset", "shape", "tokens/s", "MFU", "GiB", "s/step", "flat"]
    return title, columns, [
        [
            row["preset"],
            f"{show_size(row['length'])}×{row['batch']}",
            show_count(row["tokens_per_second"]),
            f"{row['mfu']:.2f}",
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}",
            f"{row['seconds']:.2f}",
            flat(row, rows),
        ]
        for row in rows
    ]  # fmt: skip


def flat(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    same = sorted((other for other in rows if other["preset"] == row["preset"]), key=lambda other: other["length"])
    if row is not same[-1] or len(same) < 2:
        return ""
    return f"{row['tokens_per_second'] / same[0]['tokens_per_second']:.2f}"


def profile_table(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """A line for each kind of work, and the longest ops of each model that are neither products nor kernels."""
    lines = []
    for row in document["rows"]:
        shares = row["shares"]
        lines.append([row["preset"], "products + native", percent(shares["product"] + shares["native"])])
        lines += [["", kind, percent(share)] for kind, share in shares.items()]
        others = [op for op in row["ops"] if op["kind"] == "other"][:8]
        lines += [["", f"  {op['op']}", percent(op["share"])] for op in others]
    first = document["rows"][0]
    title = f"Where a training step's time goes, {first['dtype']}, {first['length']} × {first['batch']} tokens"
    return title, ["preset", "work", "share"], lines


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
