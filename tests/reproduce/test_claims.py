import json
from pathlib import Path

import pytest

from gated_deltanet.files import as_json
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models import count, get_preset
from gated_deltanet.models.presets import PAPER
from gated_deltanet.reproduce import CELLS, LAPTOP, VERDICTS, experiment
from gated_deltanet.reproduce.claims import (
    CLAIMS,
    Claim,
    as_cells,
    at_floor,
    judge_all,
    judge_link,
    order,
    seeds_needed,
)
from gated_deltanet.reproduce.numbers import LONG_GAIN, VALIDATION
from gated_deltanet.reproduce.page import page, target_page
from gated_deltanet.reproduce.scales import SCALES
from gated_deltanet.reproduce.systems import ABLATIONS, MIXERS_ONLY, ORDERS, TEXT, config_of
from gated_deltanet.reproduce.verdicts import CANNOT_TELL, REPRODUCED

RESULTS = Path(__file__).parents[2] / "results" / "reproduce"


def made_up(loss):
    """The measures of a cell whose losses are all the same."""
    asked = {str(at): {"asked": 10, "right": 5, "loss": loss} for at in (0.5, 1, 2)}
    return {
        "validation": {"articles": [[loss * 100, 100]]},
        "pairs": {"seen": [loss * 10, 10]},
        "needles": {f"S-NIAH-{i}": asked for i in (1, 2, 3)},
        "gain": {"squad": [[-loss, 1]]},
        "long_gain": {"qasper": [[-loss, 1]]},
        "positions": {"PG19": [[loss, 1]] * 20},
        "far_afresh": {"PG19": [loss, 1]},
    }


def ranked(systems):
    """Cells in which each system is better than the next, with a little noise."""
    return {
        (system, (seed, "", "")): made_up(2 + 0.1 * i + 0.001 * (seed * (i + 3) % 5))
        for i, system in enumerate(systems)
        for seed in range(8)
    }


def test_an_order_is_groups_with_the_best_first():
    assert order("gdn > mamba2, deltanet") == (("gdn",), ("mamba2", "deltanet"))


def systems_of(target):
    """And seeds that are run for it."""
    for cell in experiment.grid(target, LAPTOP):
        names = [f"speed: {name}" for name in PAPER] if cell.system == "speed" else [cell.system]
        yield from ((name, cell.seed) for name in names)


def test_every_system_of_a_claim_is_run_for_its_target():
    for claim in CLAIMS:
        run = set(systems_of(claim.target))
        for system in (system for group in claim.order for system in group):
            assert {(system, seed) for seed in range(claim.looks[0])} <= run, claim


def test_a_claim_is_judged_by_its_links():
    judged = {claim["claim"]: claim for claim in judge_all(ranked(["mamba2", "deltanet", "mamba", "retnet", "hgrn2"]))}
    chain = judged["Mamba2, then DeltaNet and Mamba, then RetNet and HGRN2"]
    assert chain["verdict"] == REPRODUCED
    assert len(chain["links"]) == 6
    assert judged["Gated DeltaNet beats Transformer++"]["verdict"] is None  # no such cells


@pytest.mark.parametrize(("worth", "verdict"), [(0.4, REPRODUCED), (0.04, CANNOT_TELL)])
def test_nothing_is_told_apart_by_what_nobody_can_do(worth, verdict):
    pair = best, other = "recall: gdn-h2", "recall: gdn"
    claim = Claim("table5", "a > b", LONG_GAIN, ((best,), (other,)))
    cells = {(name, (seed, "", "")): made_up(-worth / i) for i, name in enumerate(pair, 1) for seed in range(4)}
    judged = judge_link(claim, pair, cells)
    assert judged is not None
    assert judged.verdict == verdict
    assert at_floor(LONG_GAIN, cells) == (verdict == CANNOT_TELL)
    assert seeds_needed([claim], cells) == {best: 4, other: 4}  # more would not tell more


@pytest.mark.parametrize("differing", ["dtype", "data"])
def test_runs_in_different_dtypes_or_on_different_texts_are_no_pair(differing):
    found = [
        {"system": name, "seed": seed, differing: value, "measures": made_up(loss)}
        for name, loss in (("a", 2.0), ("b", 3.0))
        for seed in range(4)
        for value in ["another" if (name, seed) == ("b", 3) else "one"]
    ]
    claim = Claim("table3", "a > b", VALIDATION, order("a > b"), looks=(3, 4))
    judged = judge_link(claim, ("a", "b"), as_cells(found))
    assert judged is not None
    assert judged.n == 3
    assert judge_link(claim._replace(looks=(4, 8)), ("a", "b"), as_cells(found)) is None


def test_the_page_names_every_claim_and_what_chance_would_give():
    cells = ranked(TEXT)
    same = {"parameters": 1, "state_bytes": 1, "seconds": {"training": 60}, "processor": "x"}
    found = [{"system": system, "seed": seed, "measures": m, **same} for (system, (seed, *_)), m in cells.items()]
    judged = judge_all(cells)
    text = page(found, judged, missing=3)
    assert all(claim.says in text for claim in CLAIMS)
    assert "chance alone" in text
    assert "The rule asks for 3 runs more" in text
    assert "runs more" not in page(found, judged, missing=0)
    table3 = target_page("table3", found, judged)
    assert "| gdn | 1 | 0 KiB | 8 |" in table3
    assert "16.42" in table3  # the paper's
    assert "What others measured" in table3


@pytest.mark.parametrize("system", [*TEXT, MIXERS_ONLY, *ORDERS, *ABLATIONS])
def test_all_systems_have_the_same_parameters(system):
    ours, base = (count.parameters(config_of(name, LAPTOP)) for name in (system, "gdn"))
    assert abs(ours / base - 1) < 0.02


def test_windows_are_half_of_a_row():
    attention = config_of("gdn-h1", LAPTOP).mixers[1]
    assert isinstance(attention, Attention)
    assert attention.window == LAPTOP.length // 2


def test_at_the_papers_scale_systems_are_the_presets():
    scale = SCALES["1.3b"]
    assert config_of("gdn", scale) == get_preset("gdn-1.3b")
    assert config_of("gdn-mamba2-swa", scale) == get_preset("gdn-mamba2-swa-500m")
    for size, heads in {64: 18, 128: 9, 256: 4}.items():
        mixer = config_of(f"Head Dim {size}", SCALES["400m"]).mixers[0]
        assert isinstance(mixer, GatedDeltaNet)
        assert (mixer.n_heads, mixer.d_k) == (heads, size)
    assert {cell.seed for cell in experiment.cells_of("table3", scale)} == {0}


def test_a_second_look_is_for_systems_that_the_first_did_not_tell_apart():
    told, untold, other = (Claim("table3", "a > b", VALIDATION, order(text)) for text in ("a > b", "b > c", "c > d"))
    losses = {"a": [2.0] * 4, "b": [3.0] * 4, "c": [3.3, 2.8, 3.2, 2.7]}
    cells = {(name, (seed, "", "")): made_up(loss) for name, each in losses.items() for seed, loss in enumerate(each)}
    assert seeds_needed([told, untold], cells) == {"a": 4, "b": 8, "c": 8}
    assert seeds_needed([told, other], cells) == {"a": 4, "b": 4, "c": 4, "d": 4}


@pytest.mark.skipif(not (RESULTS / VERDICTS).exists(), reason="no cells have been committed yet")
def test_committed_verdicts_follow_from_the_committed_cells():
    found = experiment.finished(LAPTOP, RESULTS / CELLS, experiment.cells_of("all", LAPTOP))
    judged = judge_all(as_cells(found))
    assert json.loads(as_json(judged)) == json.loads((RESULTS / VERDICTS).read_text())
