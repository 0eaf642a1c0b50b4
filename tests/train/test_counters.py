import math
from dataclasses import asdict

import pytest
import torch
from small import records, run_to_end, small_recipe, write_texts

from gated_deltanet.train import loop
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.step import FEW, Counters, Diverged, Step, check_diverged, counted, fault

RECIPE = resolve("gdn-nano", None, {"bad_steps": 2, "spike": 3.0})
GOOD, BAD = Step(1.0, 1.0), Step(math.nan, 1.0)


@pytest.mark.parametrize("step", [BAD, Step(1.0, math.inf), Step(1.0, math.nan)])
def test_a_step_that_is_not_finite_is_a_fault(step):
    assert fault(step, Counters(), RECIPE) == "nonfinite"
    assert fault(GOOD, Counters(), RECIPE) is None


def test_bad_steps_in_a_row_stop_the_run_with_advice():
    counters = counted(Counters(), BAD, "nonfinite", RECIPE)
    check_diverged(counters, RECIPE)
    check_diverged(counted(counted(counters, GOOD, None, RECIPE), BAD, "nonfinite", RECIPE), RECIPE)
    counters = counted(counters, BAD, "nonfinite", RECIPE)
    assert (counters.step, counters.updates, counters.nonfinite) == (2, 0, 2)
    with pytest.raises(Diverged, match="try a lower --peak-lr than"):
        check_diverged(counters, RECIPE)


def test_a_spike_is_measured_against_the_median_once_there_are_some_steps():
    counters, spike = Counters(), Step(1.0, 3.1)
    for _ in range(FEW):
        assert fault(spike, counters, RECIPE) is None
        counters = counted(counters, GOOD, None, RECIPE)
    assert fault(spike, counters, RECIPE) == "spike"
    assert fault(Step(1.0, 2.9), counters, RECIPE) is None
    assert fault(spike, counters, resolve("gdn-nano")) is None
    assert counted(counters, spike, "spike", RECIPE).norms == counters.norms


def test_a_step_that_is_not_finite_is_skipped_counted_and_logged(tmp_path, monkeypatch):
    data, once = write_texts(tmp_path / "texts"), iter([False, False, True])
    real, before = loop.gradient, []

    def sometimes(objective, *args, **kwargs):
        step = real(objective, *args, **kwargs)
        before.append([p.detach().clone() for p in objective.parameters()])
        return step._replace(loss=math.nan) if next(once, False) else step

    monkeypatch.setattr(loop, "gradient", sometimes)
    run = run_to_end(data, tmp_path / "run", tokens=192 * 4)
    assert asdict(run.counters) | {"norms": ()} == asdict(Counters(4, 3, 1, 0, 0))
    (skipped,) = [record for record in records(tmp_path / "run") if "skipped" in record]
    assert (skipped["step"], skipped["loss"], skipped["skipped"]) == (3, None, "nonfinite")
    assert all(torch.equal(a, b) for a, b in zip(before[2], before[3], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))


def test_a_run_that_diverges_stops(tmp_path):
    data = write_texts(tmp_path / "texts")
    with pytest.raises(Diverged, match="3 steps in a row"):
        run_to_end(data, tmp_path / "run", peak_lr=1e30, warmup_tokens=0, bad_steps=3)
    assert small_recipe(data).bad_steps == 10
