"""Which of transformers' norms and MLPs are ours, and that they compute what they did."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from gated_deltanet.interop.transformers import dense, functions


class Centred(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Scaled(Centred):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Squared(Centred):
    def forward(self, x):
        return Centred.forward(self, x) ** 2


class ByGroups(Centred):
    def __init__(self, dim, group_size=None, eps=1e-6):
        super().__init__(dim, eps)


class Layer(Centred):
    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], 1 + self.weight)


class MLP(nn.Module):
    def __init__(self, d, d_ff, act_fn):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(d, d_ff), nn.Linear(d, d_ff), nn.Linear(d_ff, d)
        self.act_fn = act_fn

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.fixture
def accelerated(monkeypatch):
    monkeypatch.setattr(functions, "IN_FORCE", [True])


@pytest.mark.parametrize(
    ("cls", "offset"), [(Centred, 1), (Scaled, 0), (Squared, None), (ByGroups, None), (Layer, None), (nn.Linear, None)]
)
def test_a_norm_is_known_by_what_it_computes(cls, offset):
    with torch.device("meta"):  # in which a model may be made meanwhile
        assert dense.offset_of(cls) == offset


@pytest.mark.parametrize("cls", [Centred, Scaled])
def test_a_norm_and_its_gradients_are_the_same(cls, accelerated):
    torch.manual_seed(0)
    norm, x = cls(24, eps=1e-3), torch.randn(3, 5, 24, requires_grad=True)
    nn.init.normal_(norm.weight)
    ours, seed = dense.norm_forward(cls.forward, dense.offset_of(cls)), torch.randn(3, 5, 24)
    results = []
    for forward in (ours, cls.forward):
        y = forward(norm, x)
        results.append((y, *torch.autograd.grad((y * seed).sum(), (x, norm.weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("act_fn", [nn.SiLU(), nn.GELU()])
def test_an_mlp_and_its_gradients_are_the_same(act_fn, accelerated):
    torch.manual_seed(0)
    mlp, x = MLP(10, 14, act_fn), torch.randn(3, 5, 10, requires_grad=True)
    assert dense.is_mlp(MLP)
    assert not dense.is_mlp(Centred)
    results = []
    for forward in (dense.mlp_forward(MLP.forward), MLP.forward):
        y = forward(mlp, x)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, *mlp.parameters()))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_an_mlp_with_an_adapter_of_another_dtype_is_its_own(accelerated):
    mlp, x = MLP(10, 14, nn.SiLU()), torch.randn(3, 10)
    mlp.up_proj.register_forward_hook(lambda module, inputs, y: y.bfloat16())
    torch.testing.assert_close(dense.mlp_forward(MLP.forward)(mlp, x), mlp(x), rtol=0, atol=0)


def test_inputs_may_be_given_by_name(accelerated):
    x = torch.randn(3, 10)
    for module, forward in (
        (Scaled(10), dense.norm_forward(Scaled.forward, 0)),
        (MLP(10, 14, nn.SiLU()), dense.mlp_forward(MLP.forward)),
    ):
        assert torch.equal(forward(module, hidden_states=x), forward(module, x))


def test_outside_of_acceleration_their_own_forward_runs():
    seen = []
    dense.norm_forward(lambda norm, x: seen.append("norm"), 0)(None, torch.ones(2))
    dense.mlp_forward(lambda mlp, x: seen.append("mlp"))(None, torch.ones(2))
    assert seen == ["norm", "mlp"]
