"""The switches of Gated DeltaNet (table S.1), and what the configs refuse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from budget import relative_error

from gated_deltanet.layers import HGRN2, Attention, DeltaNet, GatedDeltaNet, LinearAttention, Mamba, Mamba2, RetNet
from gated_deltanet.layers.hgrn2 import HGRN2Mixer
from gated_deltanet.ops.gated_delta_rule.reference import recurrence

BASE = GatedDeltaNet(n_heads=2, d_k=6, d_v=10)
D_MODEL = 22
SWITCHES = [
    {},
    {"decay": False},
    {"conv_size": None},
    {"conv_size": 2},
    {"gate": False},
    {"out_norm": False},
    {"out_norm": False, "gate": False},
    *({"qk_norm": norm, "feature_map": f} for norm in ("l1", "l2") for f in ("relu", "elu+1", "silu")),
    {"beta_max": 2.0},
    {"n_v_heads": 6},
    {"n_h": 2},
]


def by_hand(mixer, x):
    """The mixer on one sequence, written out from the paper. x: [L, d_model]."""
    c = mixer.config
    H_v = c.n_v_heads or c.n_heads
    maps = {"silu": F.silu, "relu": F.relu, "elu+1": lambda z: F.elu(z) + 1}

    def project(name, feature_map):
        z = x @ getattr(mixer, f"{name}_proj").weight.T
        if c.conv_size:
            w = getattr(mixer, f"{name}_conv").weight
            z = F.conv1d(F.pad(z.T, (c.conv_size - 1, 0)), w[:, None], groups=len(w)).T
        return maps[feature_map](z)

    q = project("q", c.feature_map).view(len(x), 1, c.n_heads, c.d_k)
    k = project("k", c.feature_map).view(len(x), c.n_h, c.n_heads, c.d_k)
    v = project("v", "silu").view(len(x), c.n_h, H_v, c.d_v)
    length = {"l1": lambda z: z.abs().sum(-1, True) + 1e-6, "l2": lambda z: (z.square().sum(-1, True) + 1e-6).sqrt()}
    q, k = (z / length[c.qk_norm](z) for z in (q, k))
    q = q * c.d_k**-0.5
    q, k = (z.repeat_interleave(H_v // c.n_heads, 2) for z in (q, k))
    beta = c.beta_max * torch.sigmoid(x @ mixer.b_proj.weight.T).view(len(x), c.n_h, H_v)
    log_alpha = torch.zeros(len(x), H_v)
    if c.decay:
        log_alpha = -mixer.decay.A_log.exp() * F.softplus(x @ mixer.a_proj.weight.T + mixer.decay.dt_bias)
    S, o, outputs = torch.zeros(1, H_v, c.d_k, c.d_v), torch.zeros(1, 1), []
    for t in range(len(x)):
        for h in range(c.n_h):
            decay = log_alpha[t] if h == 0 else torch.zeros(H_v)
            steps = [z[None, None] for z in (q[t, 0], k[t, h], v[t, h], decay, beta[t, h])]
            o, S = recurrence(*steps, S)
        outputs.append(o[0, 0])
    o = torch.stack(outputs)
    if c.out_norm:
        o = F.rms_norm(o, (c.d_v,), mixer.out_norm.weight, mixer.out_norm.eps)
    if c.gate:
        o = o * F.silu(x @ mixer.gate_proj.weight.T).view_as(o)
    return o.flatten(1) @ mixer.out_proj.weight.T


@torch.no_grad()
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_each_switch_does_what_the_table_says(switches):
    torch.manual_seed(0)
    mixer = replace(BASE, **switches).build(D_MODEL)
    x = torch.randn(13, D_MODEL)
    y, _ = mixer(x[None])
    assert relative_error(y[0], by_hand(mixer, x)) < 1e-5


def test_deltanet_is_gated_deltanet_without_decay_and_gate():
    mixer, other = (c.build(D_MODEL) for c in (DeltaNet(2, 6, 10), replace(BASE, decay=False, gate=False)))
    mixer.load_state_dict(other.state_dict())
    x = torch.randn(2, 13, D_MODEL)
    assert torch.equal(mixer(x)[0], other(x)[0])


@torch.no_grad()
def test_hgrn2_starts_with_bounds_that_rise_with_the_layers():
    x = torch.full((1, 1, D_MODEL), 1.0)
    for layer in range(4):
        mixer = HGRN2Mixer(HGRN2(2, 6, 10), D_MODEL, layer / 4, norm_eps=1e-5)
        mixer.f_proj.weight.fill_(-10)  # forget everything
        assert torch.allclose(mixer.log_forget(x).exp(), torch.tensor(layer / 4), atol=1e-6)
        mixer.f_proj.weight.fill_(10)
        assert torch.allclose(mixer.log_forget(x), torch.tensor(0.0), atol=1e-6)


@torch.no_grad()
def test_hgrn2_never_keeps_more_than_all_whatever_its_bounds():
    mixer = HGRN2Mixer(HGRN2(64, 32, 10), D_MODEL, 1 / 4, norm_eps=1e-5)
    mixer.lower_bound.uniform_(-9, 9)
    for weight in (1.0, 3.0, 10.0):
        mixer.f_proj.weight.fill_(weight / D_MODEL * 8)
        log_f = mixer.log_forget(torch.linspace(0, 3, 99)[None, :, None].expand(1, 99, D_MODEL))
        assert float(log_f.max()) <= 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(BASE, n_heads=0), "GatedDeltaNet: n_heads is 0, expected a whole number, at least 1"),
        (lambda: replace(BASE, d_k=6.0), "d_k is 6.0, expected a whole number"),
        (lambda: replace(BASE, d_k=True), "d_k is True, expected a whole number"),
        (lambda: replace(BASE, conv_size=0), "conv_size is 0, expected a whole number, at least 1, or None"),
        (lambda: replace(BASE, n_v_heads=5), "n_v_heads is 5, expected a multiple of n_heads, 2"),
        (lambda: replace(BASE, gate="no"), "gate is 'no', expected True or False"),
        (lambda: replace(BASE, feature_map="reLU"), "feature_map is 'reLU', expected perhaps relu"),
        (lambda: replace(BASE, feature_map=["silu"]), "feature_map is ['silu'], expected perhaps silu"),
        (lambda: replace(BASE, qk_norm="l3"), "qk_norm is 'l3', expected perhaps l"),
        (lambda: replace(BASE, beta_max=2.5), "beta_max is 2.5, expected more than 0 and at most 2"),
        (lambda: replace(BASE, n_h=0), "n_h is 0"),
        (lambda: DeltaNet(2, 6, 0), "DeltaNet: d_v is 0"),
        (
            lambda: LinearAttention(2, 6, 10, feature_map="exp"),
            "LinearAttention: feature_map is 'exp', expected one of silu",
        ),
        (lambda: Mamba2(3, 6, 10, n_groups=2), "Mamba2: n_heads is 3, expected a multiple of n_groups, 2"),
        (lambda: Mamba(26, dt_rank=None), "Mamba: dt_rank is None"),
        (lambda: RetNet(2, 5, 10), "RetNet: d_k is 5, expected an even number"),
        (lambda: Attention(4, 5), "Attention: d_head is 5, expected an even number"),
        (lambda: Attention(4, 6, n_kv_heads=3), "n_kv_heads is 3, expected a divisor of n_heads, 4"),
        (lambda: Attention(4, 6, window=0), "window is 0"),
        (lambda: Attention(4, 6, rope_dims=3), "rope_dims is 3, expected an even number up to d_head, 6"),
        (lambda: Attention(4, 6, rope_dims=8), "rope_dims is 8, expected an even number up to d_head, 6"),
        (lambda: Attention(4, 6, rope_dims=4, rope_theta=None), "rope_dims is 4, expected"),
        (lambda: Attention(4, 6, qk_norm="heads"), "qk_norm is 'heads', expected perhaps head"),
        (lambda: Attention(4, 6, gate=1), "gate is 1, expected True or False"),
        (lambda: Attention(4, 6, post_norm=None), "post_norm is None, expected True or False"),
        (lambda: replace(BASE, out_eps=0.0), "out_eps is 0.0, expected more than 0"),
        (lambda: Attention(4, 6, rope_theta=0), "rope_theta is 0, expected more than 0"),
        (lambda: Attention(4, 6, rope_theta=float("inf")), "rope_theta is inf, expected more than 0 and finite"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match="expected") as error:
        make()
    assert message in str(error.value)
