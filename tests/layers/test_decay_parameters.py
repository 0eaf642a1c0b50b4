import copy

import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.layers.decay import Decay


@pytest.mark.parametrize("d_state", [None, 3])
def test_no_cast_rounds_a_decay(d_state):
    decay = Decay(5, d_state)
    exact = {name: x.clone() for name, x in decay.state_dict().items()}
    casts = (
        lambda m: m.bfloat16(),
        lambda m: m.half(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("cpu", torch.half),
    )
    for cast in casts:
        after = cast(copy.deepcopy(decay)).state_dict()
        assert all(torch.equal(after[name], x) and after[name].dtype == torch.float32 for name, x in exact.items())


def test_decay_moves_and_widens():
    decay = Decay(5)
    assert decay.to("meta", torch.bfloat16).A_log.device.type == "meta"
    assert Decay(5).double().A_log.dtype == torch.float64


def test_decay_is_float32_whatever_the_default():
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert {p.dtype for p in Decay(5).parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["gdn", "mamba", "mamba2", "gdn-h2"])
def test_a_model_in_bfloat16_keeps_its_decays_and_runs(name):
    model = CausalLM(get_preset(f"{name}-nano")).to(torch.bfloat16)
    for name, p in model.named_parameters():
        assert p.dtype == (torch.float32 if name.endswith(("A_log", "dt_bias")) else torch.bfloat16)
    tokens = torch.randint(257, (2, 9))
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32, torch.bfloat16}
    with torch.no_grad():
        logits, state = model(tokens)
        model(tokens[:, :1], state)
    assert logits.isfinite().all()


def test_start_is_in_the_range_of_mamba():
    decay = Decay(1000)
    assert decay.A_log.min() >= 0
    assert decay.A_log.exp().max() <= 16.001
    dt = torch.nn.functional.softplus(decay.dt_bias)
    assert 0.9e-3 < dt.min() < 1.5e-3
    assert 0.07 < dt.max() < 0.101
    assert torch.equal(Decay(4, 3).A_log.exp().round(), torch.tensor([[1.0, 2, 3]] * 4))
