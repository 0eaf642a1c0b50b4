"""Table 1: every update is the minimum of its objective, and Longhorn's printed sign is wrong."""

import pytest
import torch

from gated_deltanet.objectives import TABLE_1, deltanet_update, longhorn_update, square

ROWS = {row.name: row for row in TABLE_1}


def random_step(d_k=5, d_v=7, seed=0):
    """S_prev: [d_v, d_k], k: [d_k] (not of unit length), v: [d_v], alpha, beta: scalars in (0, 1)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(d_v, d_k), normal(d_k), normal(d_v), normal().sigmoid(), normal().sigmoid()


def gradient(objective, S, *step):
    S = S.clone().requires_grad_()
    return torch.autograd.grad(objective(S, *step), S)[0]


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: row.name)
def test_update_is_the_stationary_point_of_its_objective(row):
    step = random_step()
    assert gradient(row.objective, row.update(*step), *step).norm() < 1e-12


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: row.name)
def test_update_is_the_minimum_of_its_objective(row):
    step = random_step()
    S = row.update(*step)
    for seed in range(10):
        nearby = S + 0.1 * random_step(seed=seed + 1)[0]
        assert row.objective(nearby, *step) > row.objective(S, *step)


def test_longhorn_regression_term_enters_with_a_plus():
    def printed(S, S_prev, k, v, alpha, beta):
        return square(S - S_prev) - beta * square(S @ k - v)

    step = random_step()
    S = longhorn_update(*step)
    plus, minus = (gradient(objective, S, *step).norm() for objective in (ROWS["Longhorn"].objective, printed))
    print(f"erratum, table 1, Longhorn: gradient at the update {plus:.1e} with +, {minus:.1e} with the printed -")
    assert plus < 1e-12
    assert minus > 1e-2


@pytest.mark.parametrize(("gated", "plain"), [("Mamba2", "LA"), ("Gated DeltaNet", "DeltaNet")])
def test_gated_row_without_decay_is_the_plain_row(gated, plain):
    S_prev, k, v, _, beta = random_step()
    S, alpha = S_prev + 1, torch.ones((), dtype=torch.float64)
    for part, arguments in (("objective", (S, S_prev)), ("update", (S_prev,))):
        results = [getattr(ROWS[name], part)(*arguments, k, v, alpha, beta) for name in (gated, plain)]
        torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)


def test_longhorn_is_the_delta_rule_with_a_smaller_step():
    S_prev, k, v, alpha, beta = random_step()
    epsilon = beta / (1 + beta * k @ k)
    assert epsilon < beta
    S = longhorn_update(S_prev, k, v, alpha, beta)
    torch.testing.assert_close(S, deltanet_update(S_prev, k, v, alpha, epsilon), rtol=1e-14, atol=1e-14)
