"""`gdn bench transformers`: its options and its table."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

NAME = "transformers"
CELL = ("model", "dtype", "work", "who")


@dataclass(frozen=True)
class Transformers:
    """Measure transformers' own gated delta models, stock and accelerated by our ops.

    Random models of 257 M parameters in the shape of Qwen3.5 and of OLMo-Hybrid: tokens a second of reading, writing
    and a step of fine-tuning, and the memory each takes. Stock and accelerated take turns, and each is judged by its
    best; so does llama.cpp with the same Qwen3.5, where llama-cpp-python is installed. --out writes transformers.json
    and transformers.md; rows that are there of other cells are kept, so a long measurement can be made in parts.

    Example: gdn bench transformers qwen3.5 --dtypes float32 --work decode
    """

    models: Positional[Annotated[tuple[str, ...], arg(metavar="[MODEL ...]")]] = ("qwen3.5", "olmo-hybrid")
    """Measure models of these shapes."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Give them weights of these dtypes."""
    work: tuple[str, ...] = ("prefill 512", "prefill 4096", "decode", "fine-tuning")
    """Measure these."""
    rounds: int = 3
    """Give each so many turns, if there is time."""
    minutes: float = 30
    """Begin no further round that would end after so many minutes."""
    layers: Annotated[int | None, arg(metavar="INT")] = None
    """Take so many of their twelve layers, to see that it works."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the results to this folder."""

    def run(self) -> None:
        from gated_deltanet.bench import transformers
        from gated_deltanet.cli import output

        output.check_choice(self.json, self.markdown)
        output.check_folder(self.out)
        before = earlier(self.out)
        options = {name: value for name, value in asdict(self).items() if name not in ("json", "markdown", "out")}
        document = transformers(**options, track=partial(output.tracked, what="measuring"))
        new = [cell_of(row) for row in document["rows"]]
        rows = [row for row in before if cell_of(row) not in new] + document["rows"]
        document["rows"] = sorted(rows, key=place)
        if self.out:
            output.write_results(self.out, NAME, document, *table(document))
        output.show_results(document, *table(document), NOTES, json=self.json, markdown=self.markdown)


NOTES = ["× stock: times as fast. GiB: the most memory stock held beside the weights; × GiB: ours, as a share of it."]


def earlier(out: Path | None) -> list[dict[str, Any]]:
    """Rows of a measurement that goes on in the same folder."""
    from gated_deltanet import files

    file = out / f"{NAME}.json" if out else None
    return files.read_json(file)["rows"] if file and file.exists() else []


def place(row: dict[str, Any]) -> tuple[int, ...]:
    """In the order of the options, whenever it was measured."""
    orders = {"model": Transformers.models, "dtype": Transformers.dtypes, "work": Transformers.work}
    return tuple(order.index(row[name]) for name, order in orders.items())


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in CELL)


def table(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    from gated_deltanet.quantity import show_count

    rows = {cell_of(row): row for row in document["rows"]}
    lines = []
    for cell in dict.fromkeys(cell[:3] for cell in rows):
        stock, ours = (rows[(*cell, who)] for who in ("stock", "accelerated"))
        memory = "" if stock["peak_bytes"] is None else f"{stock['peak_bytes'] / 2**30:.2f}"
        share = "" if ours["memory_of_stock"] is None else f"{ours['memory_of_stock']:.2f}"
        speeds = [show_count(row["tokens_per_second"]) for row in (stock, ours)]
        llama = rows.get((*cell, "llama.cpp"))
        there = show_count(llama["tokens_per_second"]) if llama else ""
        lines.append([*cell, *speeds, f"{ours['times_stock']:.2f}", there, memory, share])
    columns = ["model", "dtype", "work", "stock", "ours", "× stock", "llama.cpp", "GiB", "× GiB"]
    return "transformers' own models, tokens a second", columns, lines
