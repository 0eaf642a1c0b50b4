"""What came of it, for people: our numbers with their intervals, the paper's, and a verdict for each claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from gated_deltanet import paper
from gated_deltanet.quantity import show_count

from .claims import CLAIMS
from .numbers import Number
from .verdicts import CONFIDENCE, interval

TITLES = {
    "table1": "Table 1: update rules",
    "table2": "Table 2: single needles in a haystack",
    "table3": "Table 3: language modelling",
    "table4": "Table 4: recall",
    "table5": "Table 5: long documents",
    "fig2": "Fig. 2: beyond the trained length",
    "tableS1": "Table S.1: ablations",
    "tableS2": "Table S.2: orders of hybrids",
    "tracking": "State tracking: β up to 2, several steps a token",
}
NAMES = {  # of our systems in the paper's tables
    "retnet": "RetNet",
    "hgrn2": "HGRN2",
    "mamba": "Mamba",
    "mamba2": "Mamba2",
    "deltanet": "DeltaNet",
    "gdn": "Gated DeltaNet",
    "transformer": "Transformer++",
    "samba": "Samba",
    "gdn-h1": "Gated DeltaNet-H1",
    "gdn-h2": "Gated DeltaNet-H2",
}


def page(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown. found: the cells that are done. judged: what `claims.judge_all` made of them."""
    parts = ["# Reproduction", "", *summary(found, judged)]
    for target, title in TITLES.items():
        parts += ["", f"## {title}", "", *numbers_table(target, found), "", *verdict_table(target, judged)]
    return "\n".join(parts) + "\n"


def summary(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> list[str]:
    links = [link for claim in judged for link in claim["links"] if "verdict" in link]
    hours = sum(sum(cell["seconds"].values()) for cell in found) / 3600
    by_chance = (1 - CONFIDENCE) * len(links)
    return [
        f"{len(found)} runs, {hours:.1f} hours of one core. {len(links)} comparisons have been judged; if no system "
        f"differed from another, chance alone would call about {by_chance:.1f} of them reproduced or contradicted.",
        "",
        f"± is half of an interval of {100 * CONFIDENCE:.1f} % over seeds.",
    ]


def numbers_table(target: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a system that the target's claims name."""
    claims = [claim for claim in CLAIMS if claim.target == target]
    numbers = list({claim.number.title: claim.number for claim in claims}.values())
    named = dict.fromkeys(system for claim in claims for group in claim.order for system in group)
    heads = ["", "parameters", "state", "seeds", *(number.title for number in numbers), "paper"]
    lines = [heads, ["---"] * len(heads)]
    for system in named:
        cells = [cell for cell in found if cell["system"] == system]
        if cells:
            costs = [show_count(cells[0]["parameters"]), f"{cells[0]['state_bytes'] / 1024:.0f} KiB", str(len(cells))]
            lines.append([system, *costs, *(shown(number, cells) for number in numbers), papers(target, system)])
    return [f"| {' | '.join(line)} |" for line in lines]


def shown(number: Number, cells: Sequence[Mapping[str, Any]]) -> str:
    values = [number.of(cell["measures"]) for cell in cells]
    mean, half = interval(values)
    return f"{mean:.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:.3f}"


def papers(target: str, system: str) -> str:
    """The paper's number that the claim is about."""
    name = NAMES.get(system, system)
    if target == "table2" and name in paper.TABLE_2:
        return "; ".join(f"{task} {'/'.join(map(str, values))}" for task, values in paper.TABLE_2[name].items())
    columns = {"table3": (paper.TABLE_3, 0), "table4": (paper.TABLE_4, -1), "table5": (paper.TABLE_5, -1)}
    columns |= {"tableS1": (paper.TABLE_S1, 0), "tableS2": (paper.TABLE_S2, 0)}
    table, column = columns.get(target, ({}, 0))
    row = table.get(name) or table.get(system)
    return str(row[column]) if row else "–"


def verdict_table(target: str, judged: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| claim | by | pair | seeds | difference | verdict |", "|---|---|---|---|---|---|"]
    for claim in (claim for claim in judged if claim["target"] == target):
        verdict = claim["verdict"] or "not yet judged"
        lines.append(f"| **{claim['claim']}** | {claim['number']} | | | | **{verdict}** |")
        for link in claim["links"]:
            sign = "≥" if claim["at_least"] else ">"
            pair = f"{link['better']} {sign} {link['worse'] or '0'}"
            if "verdict" in link:
                size = f"{link['estimate']:+.3f} ({link['low']:+.3f} to {link['high']:+.3f}) {claim['unit']}"
                lines.append(f"| | | {pair} | {link['n']} | {size} | {link['verdict']} |")
    return lines
