"""bench, plan and inspection as a library: each verb is a function of its package."""

import pytest
import torch

from gated_deltanet import CausalLM, bench, get_preset, inspection, matmul, plan
from gated_deltanet.bench import timing


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(timing, "TURN", 0)
    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(matmul, "SIZE", 16)


@pytest.mark.usefixtures("hurry")
def test_models_are_measured_from_python():
    trained = bench.train(["gdn"], size="nano", shapes=[(32, 2)], rounds=1)
    assert [(row["preset"], row["length"], row["batch"]) for row in trained["rows"]] == [("gdn-nano", 32, 2)]
    profiled = bench.profile(["gdn-nano"], shape=(32, 2))
    assert sum(profiled["rows"][0]["shares"].values()) == pytest.approx(1)
    decoded = bench.decode(["gdn-nano"], context=(16,), steps=2, rounds=1)
    assert decoded["rows"][0]["context"] == 16
    for document in (trained, profiled, decoded):
        assert document.keys() == {"machine", "date", "load", "settings", "rows"}
        assert document["settings"]["dtype"] == "float32"


@pytest.mark.usefixtures("hurry")
def test_the_op_is_measured_from_python():
    sizes = {"heads": 2, "d_k": 4, "d_v": 6}
    document = bench.op(lengths=(3,), **sizes, backends=("chunkwise",), peers=(), tables=("lengths",), quick=True)
    assert {(row["who"], row["dtype"]) for row in document["rows"]} == {
        ("chunkwise", "float32"),
        ("chunkwise", "bfloat16"),
    }
    assert document["settings"]["threads"] == torch.get_num_threads()


def test_accuracy_is_measured_from_python():
    document = bench.accuracy(3, track=lambda measurements: measurements[:1])
    assert document["length"] == 3
    assert len(document["rows"]) == 1


def test_a_run_is_planned_from_python():
    by_name = plan.plan("gdn-nano", gpus=2, length=64, batch_tokens=512, tokens=10**6)
    assert by_name == plan.plan(get_preset("gdn-nano"), gpus=2, length=64, batch_tokens=512, tokens=10**6)
    assert (by_name["devices"], by_name["tokens_per_step"], by_name["peak_flops"]) == (2, 512, plan.GPUS["h100"].flops)


def test_a_model_is_inspected_from_python():
    model = CausalLM(get_preset("gdn-nano"))
    document = inspection.inspect(model, "abc <d>", name="<mine>", longest=5)
    assert document["tokens"] == ["<|endoftext|>", *"abc "]
    assert document["n_tokens"] == 8
    assert "&lt;mine&gt;" in inspection.page(document)


def test_a_text_without_tokens_is_refused():
    with pytest.raises(ValueError, match="makes no token of this text"):
        inspection.inspect(CausalLM(get_preset("gdn-nano")), "")


def test_the_yardstick_is_of_one_size():
    made = matmul.product()()
    assert isinstance(made, torch.Tensor)
    assert made.shape == (2048, 2048)
    assert matmul.rate(1.0) == 2 * 2048**3
    assert matmul.rate(1.0, "cuda") == 2 * 8192**3
