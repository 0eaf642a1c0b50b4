import pytest

from gated_deltanet.train import metrics


def test_tensorboard_reads_what_was_measured(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with metrics.tensorboard(tmp_path) as write:
        write({"step": 3, "loss": 2.5, "note": "not a number"})
        write({"step": 7, "loss": 1.25})
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(3, 2.5), (7, 1.25)]
    assert found.Tags()["scalars"] == ["loss"]
