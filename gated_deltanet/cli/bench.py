"""`gdn bench`: measure this machine; `gdn bench accuracy`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from gated_deltanet.cli.bench_decode import Decode
from gated_deltanet.cli.bench_op import Op
from gated_deltanet.cli.bench_train import Train
from gated_deltanet.cli.bench_transformers import Transformers
from gated_deltanet.cli.bench_weights import Weights


@dataclass(frozen=True)
class Accuracy:
    """Measure how far every form of every op is from its float64 reference.

    Relative root-mean-square errors of output, state and worst gradient, in float32 and bfloat16.

    Example: gdn bench accuracy --length 256
    """

    length: int = 512
    """Measure on sequences of so many tokens."""
    json: bool = False
    """Print one JSON document instead of a table."""
    markdown: bool = False
    """Print a Markdown table, as in docs/derivation.md."""

    def run(self) -> None:
        from gated_deltanet.bench import accuracy
        from gated_deltanet.cli.output import check_choice, print_json, print_markdown, print_table, tracked

        check_choice(self.json, self.markdown)
        document = accuracy(self.length, track=partial(tracked, what="measuring"))
        if self.json:
            return print_json(document)
        columns = ["op", "form", "dtype", "output", "state", "gradient"]
        show = print_markdown if self.markdown else print_table
        show(
            f"Relative RMS error against float64, L = {self.length}", columns, [cells(row) for row in document["rows"]]
        )


def cells(row: dict[str, Any]) -> list[str]:
    names, numbers = list(row.values())[:3], (row["output"], row["state"], row["worst_gradient"])
    return [*names, *("" if x is None else f"{x:.1e}" for x in numbers)]


@dataclass(frozen=True)
class Bench:
    """Measure this machine.

    Example: gdn bench op --quick
    """

    verb: Accuracy | Op | Train | Decode | Weights | Transformers

    def run(self) -> None:
        self.verb.run()
