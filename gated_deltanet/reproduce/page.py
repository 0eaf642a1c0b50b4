"""What came of it, for people: our numbers with their intervals, the paper's, others', and a verdict for each claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from gated_deltanet import paper
from gated_deltanet.quantity import show_count

from . import systems
from .claims import CLAIMS
from .numbers import Number
from .others import OTHERS
from .verdicts import CONFIDENCE, LOOKS, interval

FIGURE, NUMBERS = "figure.png", "numbers.json"
PENDING = "not yet judged"

TITLES = {
    "table1": "Table 1: update rules, and MQAR",
    "table2": "Table 2: single needles in a haystack",
    "table3": "Table 3: language modelling",
    "table4": "Table 4: recall",
    "table5": "Table 5: long documents",
    "fig2": "Fig. 2: beyond the trained length",
    "fig3": "Fig. 3: speed of training",
    "tableS1": "Table S.1: ablations",
    "tableS2": "Table S.2: orders of hybrids",
    "tracking": "State tracking: β up to 2, several steps a token",
}
UNNAMED = {  # systems that are shown, though no claim of the target is about them
    "table1": ("rewriting: longhorn",),
    "table2": ("needles: deltanet", f"needles: {systems.MATCHED}"),
    "table3": (systems.MIXERS_ONLY,),
    "fig2": ("transformer", "samba"),
}
PAPERS = {  # what of its numbers are shown
    "table2": "percent at 1K/2K/4K/8K",
    "table3": "WikiText perplexity",
    "table4": "mean accuracy",
    "table5": "mean score",
    "fig3": "tokens per second at 2K/4K/8K/16K",
    "tableS1": "mean perplexity",
    "tableS2": "WikiText perplexity",
}
TAUGHT = 'The systems whose names begin with "{}: " were taught to recall; the paper\'s models read text only.'
NOTES = {
    "table2": TAUGHT.format("needles"),
    "table3": "Models of this size answer the table's questions no better than by chance: nothing is shown of them.",
    "table4": TAUGHT.format("recall") + " Whether whole answers are right is not measured.",
    "table5": TAUGHT.format("recall") + " Whether whole answers are right is not measured.",
    "fig2": "Transformer++ and Samba are shown, though no claim is about them; the paper leaves Transformer++ out.",
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


def page(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]], missing: int) -> str:
    """Of all targets, in Markdown.

    found: the cells that are done. judged: what `claims.judge_all` made of them. missing: cells that come next.
    """
    lines = [
        "# Reproduction",
        "",
        *summary(found, judged, missing),
        "",
        "| | claim | by | verdict |",
        "|---|---|---|---|",
    ]
    for target, title in TITLES.items():
        for i, claim in enumerate(claim for claim in judged if claim["target"] == target):
            first = f"[{title}]({target}/README.md)" if i == 0 else ""
            lines.append(f"| {first} | {claim['claim']} | {claim['number']} | {told(claim)} |")
    return "\n".join(lines) + "\n"


def told(claim: Mapping[str, Any]) -> str:
    """The verdict, and why there can be none."""
    why = ": nobody is above the floor" if claim["verdict"] and claim["at_floor"] else ""
    return f"{claim['verdict'] or PENDING}{why}"


def target_page(target: str, found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> str:
    """With all its numbers; FIGURE lies beside it, and NUMBERS for programs."""
    own = [cell for cell in found if cell["system"] in named(target)]
    parts = [f"# {TITLES[target]}", "", *cost(target, own), *([NOTES[target]] if target in NOTES else []), ""]
    parts += [*numbers_table(target, own), ""]
    parts += [f"![{TITLES[target]}]({FIGURE})", "", "## Verdicts", "", *verdict_table(target, judged)]
    if target in OTHERS:
        parts += ["", "## What others measured", "", OTHERS[target]]
    return "\n".join(parts) + "\n"


def asked(target: str) -> list[tuple[Number, list[str]]]:
    """The numbers that a target's claims are judged by, and of which systems: those they name, and UNNAMED."""
    names: dict[str, dict[str, None]] = {}
    numbers = {claim.number.title: claim.number for claim in CLAIMS if claim.target == target}
    for claim in (claim for claim in CLAIMS if claim.target == target):
        names.setdefault(claim.number.title, {}).update(dict.fromkeys(name for group in claim.order for name in group))
    return [(number, [*dict.fromkeys((*names[title], *UNNAMED.get(target, ())))]) for title, number in numbers.items()]


def named(target: str) -> list[str]:
    """All systems of a target."""
    return list(dict.fromkeys(name for _, names in asked(target) for name in names))


def summary(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]], missing: int) -> list[str]:
    links = [link for claim in judged for link in claim["links"] if "verdict" in link]
    by_chance = (1 - CONFIDENCE) * len(links)
    more = (
        f" The rule asks for {missing} runs more: what is pending here or cannot be told may change." if missing else ""
    )
    return [
        f"{runs(found)}.{more} {len(links)} comparisons have been judged; if no system "
        f"differed from another, chance alone would call about {by_chance:.1f} of them reproduced or contradicted.",
        "",
        "The rule and what is run: docs/reproduction.md. All numbers: verdicts.json, and the pages below.",
    ]


def runs(found: Sequence[Mapping[str, Any]]) -> str:
    hours = sum(sum(cell["seconds"].values()) for cell in found) / 3600
    return f"{len(found)} runs, {hours:.1f} hours of one core"


def cost(target: str, own: Sequence[Mapping[str, Any]]) -> list[str]:
    processors = ", ".join(
        dict.fromkeys(" in ".join(filter(None, (cell["processor"], cell.get("dtype")))) for cell in own)
    )
    seeds = sorted({cell["seed"] for cell in own})
    return [
        f"`gdn reproduce {target} --data-dir DATA`: {runs(own)}, seeds {seeds[0]} to {seeds[-1]}, {processors}.",
        f"± is half of an interval of {100 * CONFIDENCE:.1f} % over seeds, from {LOOKS[0]} on.",
    ]


def measured(target: str, own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each system what it costs, and each number by seed."""
    rows = []
    for system in named(target):
        cells = sorted((cell for cell in own if cell["system"] == system), key=lambda cell: cell["seed"])
        if cells:
            by_seed = {
                number.title: {str(cell["seed"]): number.of(cell["measures"]) for cell in cells}
                for number, names in asked(target)
                if system in names
            }
            costs = {name: cells[0][name] for name in ("parameters", "state_bytes")}
            rows.append({"system": system, **costs, "numbers": by_seed})
    return rows


def numbers_table(target: str, own: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a system."""
    numbers = [number for number, _ in asked(target)]
    heads = ["", "parameters", "state", "seeds", *(number.title for number in numbers)]
    heads += [f"paper: {PAPERS[target]}"] if target in PAPERS else []
    lines = [heads, ["---"] * len(heads)]
    for row in measured(target, own):
        by_seed = row["numbers"]
        seeds = max(map(len, by_seed.values()))
        costs = [show_count(row["parameters"]), f"{row['state_bytes'] / 1024:.0f} KiB", str(seeds)]
        values = [shown(number, list(by_seed.get(number.title, {}).values())) for number in numbers]
        lines.append([row["system"], *costs, *values, *([papers(target, row["system"])] if target in PAPERS else [])])
    return [f"| {' | '.join(line)} |" for line in lines]


def shown(number: Number, values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean, half = interval(values)
    digits = number.measure.digits
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) >= LOOKS[0] else "")


def papers(target: str, system: str) -> str:
    """The paper's number that the claim is about."""
    name = NAMES.get(system.split(": ")[-1], system)
    if target == "fig3":
        return "/".join(map(str, paper.FIG_3[system.removeprefix("speed: ")])) + " K/s"
    if target == "table2" and name in paper.TABLE_2:
        return "; ".join(f"{task} {'/'.join(map(str, values))}" for task, values in paper.TABLE_2[name].items())
    columns = {"table3": (paper.TABLE_3, 0), "table4": (paper.TABLE_4, -1), "table5": (paper.TABLE_5, -1)}
    columns |= {"tableS1": (paper.TABLE_S1, 0), "tableS2": (paper.TABLE_S2, 0)}
    table, column = columns.get(target, ({}, 0))
    row = table.get(name) or table.get(system)
    return str(row[column]) if row else "–"


def verdict_table(target: str, judged: Sequence[Mapping[str, Any]]) -> list[str]:
    digits = {claim.number.measure.unit: claim.number.measure.digits for claim in CLAIMS}
    lines = ["| claim | by | pair | seeds | difference | verdict |", "|---|---|---|---|---|---|"]
    for claim in (claim for claim in judged if claim["target"] == target):
        lines.append(f"| **{claim['claim']}** | {claim['number']} | | | | **{told(claim)}** |")
        for link in claim["links"]:
            sign = "≥" if claim["at_least"] else ">"
            pair = f"{link['better']} {sign} {link['worse'] or '0'}"
            if "verdict" in link:
                mean, low, high = (f"{link[of]:+.{digits[claim['unit']]}f}" for of in ("estimate", "low", "high"))
                size = f"{mean} ({low} to {high}) {claim['unit']}"
                lines.append(f"| | | {pair} | {link['n']} | {size} | {link['verdict']} |")
    return lines
