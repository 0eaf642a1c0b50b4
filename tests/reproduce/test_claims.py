import json
from pathlib import Path

import pytest

from gated_deltanet.files import as_json
from gated_deltanet.models import count
from gated_deltanet.reproduce import CELLS, LAPTOP, VERDICTS, experiment
from gated_deltanet.reproduce.claims import CLAIMS, judge_all, order
from gated_deltanet.reproduce.page import page
from gated_deltanet.reproduce.systems import ABLATIONS, ORDERS, TEXT, config_of
from gated_deltanet.reproduce.verdicts import REPRODUCED

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
    }


def ranked(systems):
    """Cells in which each system is better than the next, with a little noise."""
    return {
        (system, seed): made_up(2 + 0.1 * i + 0.001 * (seed * (i + 3) % 5))
        for i, system in enumerate(systems)
        for seed in range(8)
    }


def test_an_order_is_groups_with_the_best_first():
    assert order("gdn > mamba2, deltanet") == (("gdn",), ("mamba2", "deltanet"))


def test_every_system_of_a_claim_is_run_for_its_target():
    for claim in CLAIMS:
        run = {(cell.system, cell.seed) for cell in experiment.grid(claim.target)}
        for system in (system for group in claim.order for system in group):
            assert {(system, seed) for seed in range(claim.looks[0])} <= run, claim


def test_a_claim_is_judged_by_its_links():
    judged = {claim["claim"]: claim for claim in judge_all(ranked(["mamba2", "deltanet", "mamba", "retnet", "hgrn2"]))}
    chain = judged["Mamba2, then DeltaNet and Mamba, then RetNet and HGRN2"]
    assert chain["verdict"] == REPRODUCED
    assert len(chain["links"]) == 6
    assert judged["Gated DeltaNet beats Transformer++"]["verdict"] is None  # no such cells


def test_the_page_names_every_claim_and_what_chance_would_give():
    cells = ranked(TEXT)
    found = [
        {"system": system, "seed": seed, "measures": m, "parameters": 1, "state_bytes": 1, "seconds": {"training": 60}}
        for (system, seed), m in cells.items()
    ]
    text = page(found, judge_all(cells))
    assert all(claim.says in text for claim in CLAIMS)
    assert "chance alone" in text


@pytest.mark.parametrize("system", [*TEXT, *ORDERS, *ABLATIONS])
def test_all_systems_have_the_same_parameters(system):
    ours, base = (count.parameters(config_of(name, LAPTOP.size, LAPTOP.vocab_size)) for name in (system, "gdn"))
    assert abs(ours / base - 1) < 0.02


@pytest.mark.skipif(not (RESULTS / VERDICTS).exists(), reason="no cells have been committed yet")
def test_committed_verdicts_follow_from_the_committed_cells():
    found = experiment.finished(LAPTOP, RESULTS / CELLS, experiment.cells_of("all"))
    judged = judge_all({(cell["system"], cell["seed"]): cell["measures"] for cell in found})
    assert json.loads(as_json(judged)) == json.loads((RESULTS / VERDICTS).read_text())
