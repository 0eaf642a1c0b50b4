from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Demo:
    """Show the gated delta rule in its forms: that they agree, and how fast each is here.

    Example: gdn demo --length 512
    """

    length: int = 1024
    """Tokens in the sequence."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.bench import forms, machine
        from gated_deltanet.cli.report import print_json, print_table, tracked

        if self.length < 1:
            raise ValueError(f"--length is {self.length}, expected at least 1")
        rows = forms.measure(self.length, track=partial(tracked, what="running the gated delta rule"))
        if self.json:
            return print_json({"machine": machine.describe(), "length": self.length, "rows": rows})
        print("\nS_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ        o_t = S_tᵀ q_t\n")
        columns = ["form", "error of o", "of dq dk dv", "of dα dβ", "µs forward", "with backward"]
        title = f"{self.length} tokens, 4 heads of 64, float32; errors against float64; µs per token and head"
        print_table(title, columns, map(cells, rows), notes=NEXT)


NEXT = [
    "The forms are one function: they differ by rounding only. Train with cpp on a CPU, with chunkwise elsewhere.",
    "Next: . .venv/bin/activate, then gdn doctor or gdn bench accuracy;",
    "or read the code, from gated_deltanet/ops/gated_delta_rule/reference.py on.",
]


def cells(row: dict[str, Any]) -> list[str]:
    form, *numbers = row.values()
    return [form, *(f"{x:.1e}" for x in numbers[:3]), *(f"{x:.2f}" for x in numbers[3:])]
