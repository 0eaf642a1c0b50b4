"""The paper's claims as data: who is better than whom, by which number; and how cells judge them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeAlias

from . import systems
from .cells.tasks import MQAR_STATES
from .numbers import (
    BEYOND,
    FALLING,
    FLAT,
    GAIN,
    KEPT,
    LONG_GAIN,
    SEEN,
    TASK,
    TOKENS,
    TOKENS_SHORT,
    VALIDATION,
    Measures,
    Number,
    mean,
    needles_found,
    needles_loss,
)
from .systems import MATCHED
from .verdicts import CANNOT_TELL, CLOSE_LOOKS, LOOKS, Verdict, chain, judge

Run: TypeAlias = tuple[int, str, str]  # seed, dtype and texts of training: what differs in any is no pair
Cells: TypeAlias = Mapping[tuple[str, Run], Measures]  # by system and run

DELTA, ADDITIVE = ("gdn", "deltanet"), ("mamba2", "retnet")
TAUGHT_RECALL = "recall: "  # before the names of systems that were
RECURRENT = "mamba2, deltanet, mamba, retnet, hgrn2"


class Claim(NamedTuple):
    """order: groups of systems, the best first; a single group: each has a number above 0. at_least: ≥ instead of >."""

    target: str
    says: str
    number: Number
    order: tuple[tuple[str, ...], ...]
    at_least: bool = False
    looks: tuple[int, ...] = LOOKS

    def links(self) -> Iterator[tuple[str, str | None]]:
        if len(self.order) == 1:
            yield from ((system, None) for system in self.order[0])
        for better, worse in pairwise(self.order):
            yield from product(better, worse)


def order(text: str, task: str = "") -> tuple[tuple[str, ...], ...]:
    """Of "gdn > mamba2, deltanet": groups, the best first. task: is put before each name."""
    return tuple(tuple(f"{task}{name.strip()}" for name in group.split(",")) for group in text.split(">"))


def tasks() -> Iterator[Claim]:
    """Table 1's update rules: keys that are rewritten, pairs in states of three sizes; and what transitions bring."""
    rules = order(
        "rewriting: gdn, rewriting: deltanet > rewriting: mamba2, rewriting: retnet, rewriting: linear-attention"
    )
    yield Claim("table1", "the delta rule corrects what is stored, addition does not", TASK, rules)
    for state in MQAR_STATES:
        delta, others = (", ".join(f"mqar: {name}; {state}" for name in names) for names in (DELTA, ADDITIVE))
        says = f"with {state} numbers of state the delta rule recalls more pairs"
        yield Claim("table1", says, TASK, order(f"{delta} > {others}"))
    for task, n_h in (("parity", 1), ("s3", 2), ("s5", 4)):
        best, beta = f"{task}: n_h = {n_h}, β ≤ 2", f"{task}: n_h = {n_h}, β ≤ 1"
        yield Claim("tracking", f"{task}: β up to 2 tracks what β up to 1 cannot", TASK, ((best,), (beta,)))
        if n_h > 1:
            steps = f"{task}: n_h = 1, β ≤ 2"
            yield Claim("tracking", f"{task}: {n_h} steps a token track what one cannot", TASK, ((best,), (steps,)))


def retrieval() -> Iterator[Claim]:
    """Table 2. Ours are trained to find needles; the paper's models are not, and read text only."""

    def of(text: str) -> tuple[tuple[str, ...], ...]:
        return order(text, "needles: ")

    for number in (needles_found, needles_loss):
        one, two, three = (number(f"S-NIAH-{i}") for i in (1, 2, 3))
        yield Claim("table2", "decay hurts retention", one, of("deltanet > mamba2"))
        yield Claim("table2", "Gated DeltaNet retains more than Mamba2", one, of("gdn > mamba2"))
        yield Claim("table2", "and no more than DeltaNet", one, of("deltanet > gdn"), at_least=True)
        yield Claim("table2", "gating helps filtering", two, of("gdn, mamba2 > deltanet"))
        yield Claim("table2", "the delta rule helps memorisation", three, of("gdn > mamba2"))
        yield Claim("table2", "also at equal state", three, of(f"gdn > {MATCHED}"))


def language() -> Iterator[Claim]:
    """Table 3, by the loss on text: accuracies of models of this size are at chance."""
    yield Claim("table3", "Gated DeltaNet beats Mamba2", VALIDATION, order("gdn > mamba2"), looks=CLOSE_LOOKS)
    yield Claim("table3", "also at equal state", VALIDATION, order(f"gdn > {MATCHED}"))
    ranks = order("mamba2 > deltanet, mamba > retnet, hgrn2")
    yield Claim("table3", "Mamba2, then DeltaNet and Mamba, then RetNet and HGRN2", VALIDATION, ranks)
    yield Claim("table3", "Gated DeltaNet beats Transformer++", VALIDATION, order("gdn > transformer"))
    hybrids = order("gdn-h2 > gdn-h1 > samba, gdn")
    yield Claim("table3", "H2, then H1, then Samba and Gated DeltaNet", VALIDATION, hybrids)


def recall() -> Iterator[Claim]:
    """Table 4, by what a document is worth to a model that was taught to recall (cells/taught.py), and by the loss of
    models of text where a pair of tokens comes again."""
    for number, task in ((GAIN, TAUGHT_RECALL), (SEEN, "")):
        yield Claim("table4", "H2, then H1, then Samba", number, order("gdn-h2 > gdn-h1 > samba", task))
        plus = order("samba > transformer", task)
        yield Claim("table4", "Samba is at least as good as Transformer++", number, plus, at_least=True)
        yield Claim("table4", "Transformer++ beats Gated DeltaNet", number, order("transformer > gdn", task))
        mamba2 = order("gdn > mamba2", task)
        yield Claim("table4", "Gated DeltaNet is at least as good as Mamba2", number, mamba2, at_least=True)
        yield Claim("table4", "and better at equal state", number, order(f"gdn > {MATCHED}", task))
        ranks = order("mamba2 > deltanet > retnet, mamba, hgrn2", task)
        yield Claim("table4", "Mamba2, then DeltaNet, then the others", number, ranks)


def length() -> Iterator[Claim]:
    """Fig. 2 and table 5."""
    yield Claim("fig2", "recurrent models do not blow up", KEPT, order(f"gdn, {RECURRENT}"), at_least=True)
    yield Claim("fig2", "Gated DeltaNet beats the other recurrent models", BEYOND, order(f"gdn > {RECURRENT}"))
    yield Claim("fig2", "hybrids beat Gated DeltaNet", BEYOND, order("gdn-h1, gdn-h2 > gdn"))
    for says, text in {
        "Gated DeltaNet beats the other recurrent models": f"gdn > {RECURRENT}",
        "H2, then H1, then Gated DeltaNet": "gdn-h2 > gdn-h1 > gdn",
        "Transformer++ is last beyond its length": f"gdn, {RECURRENT} > transformer",
    }.items():
        yield Claim("table5", says, LONG_GAIN, order(text, TAUGHT_RECALL))


def ablations() -> Iterator[Claim]:
    """Tables S.1 and S.2."""
    most, some = "naive Delta Rule, L1-norm & SiLU", "without Output Gate, without Short Conv"
    little = "without Output Norm, L2-norm & ReLU, L2-norm & 1+ELU"
    for says, ranks in {
        "the gate of the memory counts, and the L2 norm": f"{systems.BASE} > {most}",
        "output gate and short convolution count": f"{systems.BASE} > {some}",
        "but less": f"{some} > {most}",
        "output norm and feature map count a little": f"{systems.BASE} > {little}",
        "larger heads are better": f"Head Dim 256 > {systems.BASE} > Head Dim 64",
    }.items():
        yield Claim("tableS1", says, VALIDATION, order(ranks))
    orders = order("gdn-h2 > gdn-swa-mamba2, gdn-mamba2-swa, mamba2-swa-gdn")
    yield Claim("tableS2", "Mamba2, Gated DeltaNet, attention is the best order", VALIDATION, orders)


def speed() -> Iterator[Claim]:
    """Fig. 3."""

    def systems_of(text: str) -> tuple[tuple[str, ...], ...]:
        return order(text, "speed: ")

    yield Claim("fig3", "the gate of the memory costs no time", TOKENS, systems_of("gdn > deltanet"), at_least=True)
    yield Claim("fig3", "Mamba2 is a little faster", TOKENS, systems_of("mamba2 > gdn"))
    first = "transformer > gdn, deltanet, mamba2, mamba, samba, gdn-h1, gdn-h2"
    yield Claim("fig3", "Transformer++ is the fastest in short rows", TOKENS_SHORT, systems_of(first))
    yield Claim("fig3", "and falls behind in long ones", FALLING, systems_of("transformer"))
    flat = "gdn, deltanet, mamba2, mamba, samba, gdn-h1, gdn-h2"
    yield Claim("fig3", "the others do not", FLAT, systems_of(flat), at_least=True)
    yield Claim("fig3", "hybrids are faster than Gated DeltaNet", TOKENS, systems_of("gdn-h1, gdn-h2 > gdn"))
    yield Claim("fig3", "Samba is faster than Mamba", TOKENS, systems_of("samba > mamba"))
    slow = "gdn, deltanet, mamba2, samba, gdn-h1, gdn-h2 > mamba"
    yield Claim("fig3", "Mamba is the slowest", TOKENS, systems_of(slow))


CLAIMS = [claim for part in (tasks, retrieval, language, recall, length, speed, ablations) for claim in part()]


def as_cells(found: Iterable[Mapping[str, Any]]) -> Cells:
    """found: what was measured of each system and seed."""

    def run(each: Mapping[str, Any]) -> Run:
        return each["seed"], each.get("dtype", ""), each.get("data", "")

    return {(each["system"], run(each)): each["measures"] for each in found}


def judge_link(claim: Claim, link: tuple[str, str | None], cells: Cells) -> Verdict | None:
    """By the seeds, in their order, that both systems have; None: too few."""
    better, worse = link
    runs = sorted(run for system, run in cells if system == better and (worse is None or (worse, run) in cells))
    differences = []
    for run in runs:
        other = 0.0 if worse is None else claim.number.of(cells[worse, run])
        differences.append(claim.number.better * (claim.number.of(cells[better, run]) - other))
    found = judge(differences, claim.number.measure, at_least=claim.at_least, looks=claim.looks)
    return found._replace(verdict=CANNOT_TELL) if found and at_floor(claim.number, cells) else found


def at_floor(number: Number, cells: Cells) -> bool:
    """Not even the best of all systems that are judged by it can do this: their differences say nothing."""
    if number.floor is None:
        return False
    named = {name for claim in CLAIMS if claim.number.title == number.title for group in claim.order for name in group}
    values = {name: [number.of(m) for (system, _), m in cells.items() if system == name] for name in named}
    best = max((number.better * mean(each) for each in values.values() if each), default=-math.inf)
    return best < number.better * number.floor


def seeds_needed(claims: Iterable[Claim], cells: Cells) -> dict[str, int]:
    """Of each system that they name: those of the first look, and of the last where more seeds may tell more."""
    needed: dict[str, int] = {}
    for claim in claims:
        for link in claim.links():
            found = judge_link(claim, link, cells)
            again = found and found.verdict == CANNOT_TELL and not at_floor(claim.number, cells)
            n = claim.looks[-1 if again else 0]
            needed |= {system: max(n, needed.get(system, 0)) for system in link if system}
    return needed


def judge_all(cells: Cells) -> list[dict[str, Any]]:
    """Of each claim its verdict and those of its links; None where too few seeds have been run."""
    return [judge_claim(claim, cells) for claim in CLAIMS]


def judge_claim(claim: Claim, cells: Cells) -> dict[str, Any]:
    links = {link: judge_link(claim, link, cells) for link in claim.links()}
    known = [each.verdict for each in links.values() if each]
    return {
        "target": claim.target,
        "claim": claim.says,
        "number": claim.number.title,
        "unit": claim.number.measure.unit,
        "at_least": claim.at_least,
        "at_floor": at_floor(claim.number, cells),
        "verdict": chain(known) if len(known) == len(links) else None,
        "links": [{"better": a, "worse": b, **(each._asdict() if each else {})} for (a, b), each in links.items()],
    }
