import torch

from gated_deltanet.layers import RetNet
from gated_deltanet.ops.rotary import rotate


def turned(x, positions, theta):
    """By complex numbers, in float64."""
    d = x.shape[-1]
    z = torch.complex(*x.double().chunk(2, -1))
    angle = positions.double()[..., None, None] * theta ** (-torch.arange(0, d, 2).double() / d)
    return torch.cat(torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).unbind(-1), -1)


def test_queries_and_keys_are_turned_by_their_positions_as_exactly_as_their_dtype_allows():
    q, k = torch.randn(2, 5, 6, 8), torch.randn(2, 5, 3, 8)
    at = torch.tensor([[0, 1, 2, 3, 4], [90, 91, 92, 93, 94]])
    for dtype, tolerance in [(torch.float32, 1e-5), (torch.float64, 1e-13)]:
        for x, got in zip((q, k), rotate(at, 10000.0, q.to(dtype), k.to(dtype)), strict=True):
            assert got.dtype == dtype
            assert (got - turned(x, at, 10000.0)).abs().max() < tolerance


def test_decay_of_retnet_is_as_exact_as_its_input():
    mixer = RetNet(3, 4, 6).build(20)
    expected = torch.tensor([31 / 32, 63 / 64, 127 / 128], dtype=torch.float64).log()
    assert (mixer.log_alpha(torch.zeros(1).double()) - expected).abs().max() < 1e-15
    assert mixer.log_alpha(torch.zeros(1).bfloat16()).dtype == torch.float32
