"""`gdn accelerate`: what acceleration would change in the installed transformers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerate:
    """Show what gated_deltanet.accelerate_transformers() would do to the installed transformers.

    For each modeling module with a delta rule: which functions our ops would stand in for on a CPU, and what stays as
    it is, with the reason. Nothing is changed: the line in your own program is what accelerates it.

    Example: gdn accelerate --json
    """

    json: bool = False
    """Print one JSON list instead of a table."""

    def run(self) -> None:
        from gated_deltanet.cli.output import print_json, print_table
        from gated_deltanet.interop.transformers.survey import survey

        rows = survey()
        if self.json:
            return print_json([row._asdict() for row in rows])
        cells = [(row.module.split(".")[-2], row.name, row.becomes or f"stays: {row.stays}") for row in rows]
        print_table("Transformers on a CPU", ["model", "what", "becomes"], cells, notes=NOTES)


NOTES = [
    "On other devices everything stays as it is, and so do projections, attention and experts everywhere.",
    "In Python: gated_deltanet.accelerate_transformers()",
]
