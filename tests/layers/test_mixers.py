"""What every token mixer does, whatever it is."""

from itertools import pairwise

import pytest
import torch
from budget import relative_error

from gated_deltanet.layers import (
    HGRN2,
    MIXERS,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba,
    Mamba2,
    RetNet,
)
from gated_deltanet.models.state import map_state, tensors

D_MODEL = 22
CONFIGS = {
    "GatedDeltaNet": GatedDeltaNet(2, 6, 10),
    "GatedDeltaNet, grouped, β to 2": GatedDeltaNet(2, 6, 10, n_v_heads=4, beta_max=2.0, conv_size=3),
    "GatedDeltaNet, DeltaProduct": GatedDeltaNet(2, 6, 10, n_v_heads=4, n_h=3),
    "GatedDeltaNet, bare": GatedDeltaNet(2, 6, 10, decay=False, conv_size=None, gate=False, out_norm=False),
    "GatedDeltaNet, L1, ReLU": GatedDeltaNet(2, 6, 10, qk_norm="l1", feature_map="relu", out_norm=False),
    "DeltaNet": DeltaNet(2, 6, 10),
    "Mamba2": Mamba2(4, 6, 10, n_groups=2),
    "Mamba": Mamba(d_inner=26, dt_rank=3, d_state=5),
    "RetNet": RetNet(2, 6, 10),
    "HGRN2": HGRN2(2, 6, 10),
    "LinearAttention": LinearAttention(2, 6, 10),
    "Longhorn": Longhorn(2, 6, 10),
    "Attention": Attention(4, 6, n_kv_heads=2),
    "Attention, window": Attention(4, 6, window=7),
    "Attention, Qwen3.5's": Attention(4, 10, n_kv_heads=2, rope_dims=6, qk_norm="head", gate=True),
    "Attention, OLMo's": Attention(4, 6, n_kv_heads=2, window=7, rope_theta=None, qk_norm="all"),
}


@pytest.fixture(params=CONFIGS, name="mixer")
def built(request):
    torch.manual_seed(0)
    mixer = CONFIGS[request.param].build(D_MODEL, layer=1, n_layers=3)
    for parameter in mixer.parameters():  # ones and zeros would hide what is left out
        torch.nn.init.normal_(parameter, std=0.4)
    return mixer


def test_every_mixer_is_tested():
    assert {type(config).__name__ for config in CONFIGS.values()} == set(MIXERS)


def assert_same(got, expected, tolerance=3e-6):
    got, expected = list(tensors(got)), list(tensors(expected))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert relative_error(a.detach(), b.detach()) < tolerance


@torch.no_grad()
@pytest.mark.parametrize("cuts", [list(range(18)), [0, 1, 10, 10, 17]], ids=["by tokens", "by pieces"])
def test_going_on_from_the_state_equals_the_whole(mixer, cuts):
    x = torch.randn(3, 17, D_MODEL)
    whole, at_end = mixer(x)
    parts, state = [], None
    for a, b in pairwise(cuts):
        y, state = mixer(x[:, a:b], state)
        parts.append(y)
    assert_same(torch.cat(parts, 1), whole)
    if mixer.__class__.__name__ != "AttentionMixer":  # whose cache without a window is as long as it was made
        assert_same(state, at_end)


def test_packed_sequences_equal_separate_ones_with_their_states_and_gradients(mixer):
    lengths = [5, 1, 0, 9]
    past, row = torch.randn(4, 6, D_MODEL), torch.randn(1, 15, D_MODEL, requires_grad=True)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        _, before = mixer(past)

    y, after = mixer(row, before, cu_seqlens=cu_seqlens)
    parameters = [row, *mixer.parameters()]
    grads = torch.autograd.grad(y.square().sum(), parameters)

    apart = [
        mixer(row[:, a:b], map_state(lambda x, i=i: x[i : i + 1], before))
        for i, (a, b) in enumerate(pairwise(cu_seqlens.tolist()))
    ]
    y_apart = torch.cat([y for y, _ in apart], 1)
    assert_same(y, y_apart)
    assert_same(grads, torch.autograd.grad(y_apart.square().sum(), parameters), tolerance=1e-5)
    for i, (_, state) in enumerate(apart):
        if mixer.__class__.__name__ != "AttentionMixer" or mixer.config.window:
            assert_same(map_state(lambda x, i=i: x[i : i + 1], after), state)


@torch.no_grad()
def test_a_given_state_is_not_changed(mixer):
    x = torch.randn(3, 8, D_MODEL)
    _, state = mixer(x)
    copy = map_state(torch.clone, state)
    first, _ = mixer(x[:, :1], state)
    again, _ = mixer(x[:, :1], state)
    assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(copy), strict=True))
    assert torch.equal(first, again)


@torch.no_grad()
def test_sequences_do_not_see_each_other_and_states_can_be_chosen(mixer):
    x = torch.randn(3, 8, D_MODEL)
    _, state = mixer(x[:, :5])
    chosen = torch.tensor([2, 0, 2])
    expected, _ = mixer(x[chosen])
    got, _ = mixer(x[chosen, 5:], map_state(lambda x: x[chosen], state))
    assert_same(got, expected[:, 5:])


@torch.no_grad()
def test_the_state_can_be_left_out(mixer):
    x = torch.randn(3, 8, D_MODEL)
    y, nothing = mixer(x, keep_state=False)
    assert nothing is None
    assert torch.equal(y, mixer(x)[0])


def test_every_parameter_has_a_gradient(mixer):
    y, _ = mixer(torch.randn(3, 8, D_MODEL))
    y.square().sum().backward()
    missing = [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]
    assert not missing


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_half_precision_is_near(mixer, autocast):
    x = torch.randn(3, 17, D_MODEL)
    expected, _ = mixer(x)
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            y, state = mixer(x)
            y, _ = mixer(x, state)
        y, _ = mixer(x)
    else:
        y, _ = mixer.to(torch.bfloat16)(x.bfloat16())
        assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert relative_error(y.detach().float(), expected.detach()) < 5e-2
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
