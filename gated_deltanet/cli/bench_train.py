"""`gdn bench train`: its options and its table."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Train:
    """Measure how fast models train: the paper's Fig. 3 for this machine.

    Forward, loss, backward and AdamW on random tokens. The models take turns, and each shape is judged by its best.
    MFU: 6 FLOPs for each weight that multiplies (the head among them, the embedding not) and 3 × the mixers' own, as a
    share of what torch.mm of 2048² reaches in the same run and dtype. bfloat16 is autocast over float32 weights.
    --out writes train.json, train.md and train.png, where the paper's H100 stands beside.

    Example: gdn bench train gdn transformer --size tiny --shapes 2Kx4 8Kx1 --out results/train
    """

    presets: Positional[Annotated[tuple[str, ...], arg(metavar="[PRESET ...]")]] = ()
    """Measure these presets, or architectures of --size; by default the paper's ten."""
    size: str = "tiny"
    """Measure architectures of this size: 1.3b, 400m, small, tiny or nano."""
    shapes: tuple[str, ...] = ("2Kx16", "4Kx8", "8Kx4", "16Kx2")
    """Measure batches of these shapes, length × batch."""
    dtype: str = "float32"
    """Train in float32 or bfloat16."""
    rounds: int = 3
    """Give each so many turns, if there is time."""
    minutes: float = 60
    """Begin no further round that would end after so many minutes."""
    packed: bool = False
    """Pack documents of unequal length into each row, as training does, rather than give each a row."""
    checkpointing: bool = False
    """Keep only the blocks' inputs for backward and run the blocks again."""
    keep_memory: bool = False
    """Keep freed memory in the process, so that page faults do not count (with glibc)."""
    profile: bool = False
    """Show what share of a step of the first shape are matrix products, native kernels and other ops, instead."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.cli import output

        output.check_choice(self.json, self.markdown)
        output.check_folder(self.out)
        document = profiled(self) if self.profile else measured(self)
        document["settings"] = asdict(self) | {"out": None}
        table = profile_table(document) if self.profile else speed_table(document)
        if self.out:
            output.write_results(self.out, "profile" if self.profile else "train", document, *table)
            if not self.profile:
                from gated_deltanet.bench.figures import draw_train

                draw_train(document, self.out / "train.png")
        notes = PROFILE_NOTES if self.profile else NOTES
        output.show_results(document, *table, notes, json=self.json, markdown=self.markdown)

    def parsed_shapes(self) -> list[tuple[int, int]]:
        from gated_deltanet.quantity import parse_shape

        return [parse_shape("--shapes", shape) for shape in self.shapes]


def measured(options: Train) -> dict[str, Any]:
    from gated_deltanet.bench import train
    from gated_deltanet.cli.output import tracked

    return train(
        options.presets,
        size=options.size,
        shapes=options.parsed_shapes(),
        dtype=options.dtype,
        rounds=options.rounds,
        minutes=options.minutes,
        packed=options.packed,
        checkpointing=options.checkpointing,
        keep_memory=options.keep_memory,
        track=partial(tracked, what="training"),
    )


def profiled(options: Train) -> dict[str, Any]:
    from gated_deltanet.bench import profile
    from gated_deltanet.cli.output import tracked

    first = options.parsed_shapes()[0]
    track = partial(tracked, what="profiling")
    return profile(options.presets, size=options.size, shape=first, dtype=options.dtype, track=track)


NOTES = [
    "MFU: of what torch.mm reached in the same run and dtype. GiB: the most memory a step held, weights included.",
    "flat: speed at the longest length against the shortest, of the same model.",
]
PROFILE_NOTES = ["Shares of the time of one step. native: our C++ kernels, and torch's fused attention."]


def speed_table(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    from gated_deltanet.quantity import show_count, show_size

    rows = [row for row in document["rows"] if "left_out" not in row]
    settings = document["settings"]
    title = f"Training speed, {settings['dtype']}{', packed documents' if settings['packed'] else ''}"
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
