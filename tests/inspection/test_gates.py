from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gated_deltanet.inspection.trace import gates_of
from gated_deltanet.layers import (
    HGRN2,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba,
    Mamba2,
    RetNet,
)

X = torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(0))  # [B, L, d_model]


def build(mixer, **place) -> Any:
    return mixer.build(20, **place)


def gates(module, x=X, state=None) -> Any:
    return gates_of(module, x, state)


def test_gated_deltanet_has_the_alpha_and_beta_of_its_weights():
    mixer = build(GatedDeltaNet(n_heads=2, d_k=4, d_v=6, n_v_heads=4, beta_max=2))
    w = dict(mixer.named_parameters())
    log_alpha, beta = gates(mixer)
    dt = torch.log1p(torch.exp(X @ w["a_proj.weight"].T + w["decay.dt_bias"]))
    torch.testing.assert_close(log_alpha[..., 0], -torch.exp(w["decay.A_log"]) * dt)
    torch.testing.assert_close(beta, 2 / (1 + torch.exp(-X @ w["b_proj.weight"].T)))


def test_delta_product_has_the_mean_beta_of_its_steps():
    mixer = build(GatedDeltaNet(n_heads=3, d_k=4, d_v=6, n_h=2))
    b = (X @ mixer.b_proj.weight.T).sigmoid()
    torch.testing.assert_close(gates(mixer).beta, (b[..., :3] + b[..., 3:]) / 2)


@pytest.mark.parametrize("mixer", [DeltaNet(3, 4, 6), Longhorn(3, 4, 6)], ids=lambda m: type(m).__name__)
def test_delta_rules_without_decay_have_beta_only(mixer):
    module = build(mixer)
    log_alpha, beta = gates(module)
    assert log_alpha is None
    torch.testing.assert_close(beta, 1 / (1 + torch.exp(-X @ module.b_proj.weight.T)))


def test_mamba2_decays_by_its_last_projections():
    mixer = build(Mamba2(n_heads=3, d_k=4, d_v=6))
    raw = X @ mixer.in_proj.weight[-3:].T
    log_alpha, beta = gates(mixer)
    torch.testing.assert_close(log_alpha[..., 0], -mixer.decay.A_log.exp() * F.softplus(raw + mixer.decay.dt_bias))
    assert beta is None


def test_retnet_forgets_alike_at_every_token():
    alpha = gates(build(RetNet(n_heads=3, d_k=4, d_v=6))).log_alpha.exp()
    torch.testing.assert_close(alpha, torch.tensor([31 / 32, 63 / 64, 127 / 128])[:, None].expand(2, 7, 3, 1))


@pytest.mark.parametrize("layer", [0, 2])
def test_hgrn2_has_a_decay_for_each_key_channel_above_its_bound(layer):
    mixer = build(HGRN2(n_heads=3, d_k=4, d_v=6), layer=layer, n_layers=5)
    alpha = gates(mixer).log_alpha.exp()
    bound = layer / 5
    expected = bound + (1 - bound) * (X @ mixer.f_proj.weight.T).sigmoid()
    torch.testing.assert_close(alpha, expected.unflatten(-1, (3, 4)))


def test_mamba_decays_as_its_state_does_from_piece_to_piece():
    """h of the second piece, with nothing written (B = 0), is the first's times every α."""
    mixer = build(Mamba(d_inner=6, dt_rank=2, d_state=5))
    _, state = mixer(X[:1, :3])
    with torch.no_grad():
        mixer.x_proj.weight[2:7] = 0
    alpha = gates(mixer, X[:1, 3:], state).log_alpha.exp()  # [1, 4, 1, 6 · 5]
    _, after = mixer(X[:1, 3:], state)
    torch.testing.assert_close(after.h, state.h * alpha.prod(1).view(1, 6, 5))


@pytest.mark.parametrize("mixer", [Attention(2, 4), LinearAttention(2, 4, 6)], ids=lambda m: type(m).__name__)
def test_others_have_no_gates(mixer):
    assert gates(build(mixer)) == (None, None)
