from importlib import import_module
from typing import Any

import pytest
import torch

from gated_deltanet import matmul
from gated_deltanet.bench import timing
from gated_deltanet.bench.train import Cell
from gated_deltanet.ops import native

train: Any = import_module("gated_deltanet.bench.train")  # the module: its function has the same name
CELLS = [Cell("gdn-nano", 32, 2), Cell("transformer-nano", 64, 1)]


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(matmul, "SIZE", 16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_cell_is_measured(dtype):
    rows = train.measure(CELLS, dtype, rounds=2)
    assert [(row["preset"], row["length"], row["batch"], row["packed"]) for row in rows] == CELLS
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(64 / row["seconds"])
        assert row["mfu"] == pytest.approx(
            row["flops_per_token"] * row["tokens_per_second"] / row["matmul_gflops"] / 1e9
        )
        assert 0 < row["optimiser_seconds"] < row["seconds"]


def test_packed_rows_hold_documents_and_none_goes_over_the_end_of_its_row():
    ends = Cell("gdn-nano", 512, 4, packed=True).ends()
    assert {0, 512, 1024, 1536, 2048} < {*ends}
    assert ends == sorted(ends)
    assert ends[-1] == 2048
    (packed,) = train.measure([Cell("transformer-nano", 512, 1, packed=True)], "float32")
    (whole,) = train.measure([Cell("transformer-nano", 512, 1)], "float32")
    assert packed["flops_per_token"] < whole["flops_per_token"]


def test_a_step_learns_from_the_same_tokens():
    trial = train.Trial(CELLS[0], "float32")
    losses = []
    for _ in range(3):
        losses.append(float(trial.gradients()))
        trial.update()
    assert losses == sorted(losses, reverse=True)
    assert all(p.grad is None for p in trial.model.parameters())


def test_what_would_not_fit_in_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(train, "available_bytes", lambda: 10**6)
    (row,) = train.measure(CELLS[:1], "float32")
    assert row["left_out"].startswith("needs some")


def test_best_of_the_rounds_counts(monkeypatch):
    times = iter([train.Times(3, 1, 1), train.Times(2, 0.5, 1), train.Times(4, 1, 1)])
    monkeypatch.setattr(train.Trial, "time", lambda self: next(times))
    (row,) = train.measure(CELLS[:1], "float32", rounds=3, seconds=100)
    assert row["seconds"] == 2.5


def test_no_round_begins_that_would_end_too_late(monkeypatch):
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert [*timing.turns("ab", rounds=5, seconds=0)] == ["a", "b"]
    assert [*timing.turns("ab", rounds=5, seconds=25)] == ["a", "b"] * 2
    assert [*timing.turns("ab", rounds=2, seconds=1000)] == ["a", "b"] * 2


def test_shares_of_a_step_add_up():
    found = train.shares(CELLS[0], "float32")
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["shares"]["product"] > 0
    if not native.unusable():
        assert found["shares"]["native"] > 0


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten::mm", "product"),
        ("gdn::gated_delta_rule_cpp_backward", "native"),
        ("GeneratedBackwardFor_gdn_swiglu_cpp_default", "native"),
        ("GeneratedBackwardFor_gdn_swiglu_cpp_defaultBackward", "other"),
        ("gdn::linear_cross_entropy_blocked", "other"),
        ("gdn::linear_cross_entropy_total_cpp", "native"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "native"),
        ("aten::copy_", "other"),
    ],
)
def test_kinds_of_work(op, kind):
    assert train.kind(op) == kind


def test_matmul_rate_is_flops_per_second():
    assert matmul.rate(2.0) == 16**3
    assert matmul.matmul_flops(torch.float32, seconds=0) > 0
