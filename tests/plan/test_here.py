"""The arithmetic of speed against measured runs of this project, which `gdn bench train` left in results/."""

import json
from pathlib import Path

import pytest

from gated_deltanet.models import get_preset
from gated_deltanet.plan.speed import cpu_rates, seconds_per_token

RESULTS = Path(__file__).parents[2] / "results" / "bench"


def rows(run: str) -> list[dict]:
    return json.loads((RESULTS / run / "train.json").read_text())["rows"]


def ratio(row: dict) -> float:
    """Measured seconds of a token against predicted, with the matrix rate of the same run."""
    rates = cpu_rates(1e9 * row["matmul_gflops"])
    return 1 / row["tokens_per_second"] / seconds_per_token(get_preset(row["preset"]), row["length"], rates)


@pytest.mark.parametrize("preset", sorted({row["preset"] for row in rows("train")}))
def test_every_architecture_takes_the_time_that_is_predicted(preset):
    found = sorted(ratio(row) for row in rows("train") if row["preset"] == preset)
    assert found[0] > 1 / 1.25
    assert found[len(found) // 2] < 1.25  # not all: a neighbour may have slowed one down


def test_so_does_a_larger_model():
    assert [ratio(row) for row in rows("train-small-float32")] == pytest.approx([1, 1, 1], rel=0.1)
