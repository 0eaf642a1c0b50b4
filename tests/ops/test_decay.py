import pytest
import torch

from gated_deltanet.ops.decay import decay_mask, segment_sums


def test_segment_sums_are_sums_between_two_positions():
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums = segment_sums(x)
    for i in range(6):
        for j in range(6):
            expected = x[:, j + 1 : i + 1].sum(-1) if i >= j else torch.full((3,), -torch.inf)
            torch.testing.assert_close(sums[:, i, j], expected, check_dtype=False)


@pytest.mark.parametrize("strong", [-100.0, -1000.0, -torch.inf])
def test_decay_mask_is_the_product_of_decays(strong):
    log_alpha = torch.tensor([-0.1, -0.2, strong, -0.3, -0.4], dtype=torch.float64)
    alpha = log_alpha.exp()
    Gamma = decay_mask(log_alpha)
    for i in range(5):
        for j in range(5):
            expected = alpha[j + 1 : i + 1].prod() if i >= j else torch.zeros(())
            torch.testing.assert_close(Gamma[i, j], expected, rtol=1e-13, atol=0, check_dtype=False)


def test_a_strong_decay_costs_no_digits_where_differences_of_one_sum_lose_two():
    """The reason for segment sums: see docs/derivation.md."""
    log_alpha = -torch.rand(64, generator=torch.Generator().manual_seed(0)) / 10
    log_alpha[10] = -100.0
    exact = decay_mask(log_alpha.double())
    G = log_alpha.cumsum(0)
    differences = (G[:, None] - G).tril().exp().tril()
    after = slice(11, None)

    def error(Gamma):
        return float(((Gamma.double() - exact)[after, after]).abs().max())

    print(f"error of Γ after log α = −100: {error(decay_mask(log_alpha)):.1e}, by differences {error(differences):.1e}")
    assert error(decay_mask(log_alpha)) < 3e-7
    assert error(differences) > 20 * error(decay_mask(log_alpha))


def test_gradient_is_zero_and_finite_where_alpha_is_zero():
    log_alpha = torch.tensor([-0.1, -torch.inf, -0.3], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(decay_mask(log_alpha).sum(), log_alpha)
    assert gradient.isfinite().all()
    assert gradient[1] == 0
