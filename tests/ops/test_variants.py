from functools import partial

import pytest
import torch
from budget import assert_within_budget, cast, outputs_and_grads, relative_error
from torch.nn.functional import normalize

from gated_deltanet.objectives import longhorn_update
from gated_deltanet.ops import delta_product, gated_delta_rule, longhorn, signed_beta

normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))


def longhorn_inputs(B=2, L=70, H=2, H_v=4, d_k=5, d_v=3):
    return {
        "q": normal(B, L, H, d_k),
        "k": 2 * normal(B, L, H, d_k),  # keys of any length
        "v": normal(B, L, H_v, d_v),
        "beta": 3 * normal(B, L, H_v).sigmoid(),
        "state": normal(B, H_v, d_k, d_v),
    }


def product_inputs(B=2, L=30, n_h=3, H=2, H_v=4, d_k=5, d_v=7):
    return {
        "q": normal(B, L, H, d_k),
        "k": normalize(normal(B, L, n_h, H, d_k), dim=-1),
        "v": normal(B, L, n_h, H_v, d_v),
        "log_alpha": -normal(B, L, H_v).exp() / 10,
        "beta": 2 * normal(B, L, n_h, H_v).sigmoid(),
        "state": normal(B, H_v, d_k, d_v),
    }


def test_longhorn_is_within_budget_of_its_recurrence():
    assert_within_budget(longhorn, partial(longhorn, backend="reference"), longhorn_inputs(), ["beta"])


def test_longhorn_is_the_update_of_table_1():
    x = cast(longhorn_inputs(B=1, L=1, H=1, H_v=1), torch.float64)
    _, S = longhorn(**x)
    expected = longhorn_update(x["state"][0, 0].T, x["k"][0, 0, 0], x["v"][0, 0, 0], torch.ones(()), x["beta"][0, 0, 0])
    assert relative_error(S[0, 0].T, expected) < 1e-14


def test_delta_product_is_within_budget_of_its_recurrence():
    reference = partial(delta_product, backend="reference")
    assert_within_budget(delta_product, reference, product_inputs(), ["log_alpha", "beta"])


def test_delta_product_multiplies_householder_matrices():
    x = cast(product_inputs(B=1, L=4, H=1, H_v=1), torch.float64)
    S, o = x["state"][0, 0], []
    for t in range(4):
        S = x["log_alpha"][0, t, 0].exp() * S
        for k, v, beta in zip(x["k"][0, t, :, 0], x["v"][0, t, :, 0], x["beta"][0, t, :, 0], strict=True):
            S = (torch.eye(5, dtype=S.dtype) - beta * torch.outer(k, k)) @ S + beta * torch.outer(k, v)
        o.append(S.T @ x["q"][0, t, 0])
    ours_o, ours_S = delta_product(**x)
    assert relative_error(ours_o[0, :, 0], torch.stack(o)) < 1e-14
    assert relative_error(ours_S[0, 0], S) < 1e-14


def test_delta_product_of_one_step_is_the_gated_delta_rule():
    x = product_inputs(n_h=1)
    plain = x | {n: x[n].squeeze(2) for n in ("k", "v", "beta")}
    expected = outputs_and_grads(gated_delta_rule, plain)
    for name, got in outputs_and_grads(delta_product, x).items():
        assert torch.equal(got.reshape(expected[name].shape), expected[name]), name


def test_delta_product_packs_sequences():
    x = cast(product_inputs(B=1), torch.float64)
    state = normal(2, 4, 5, 7).double()
    o, S = delta_product(**x | {"state": state}, cu_seqlens=torch.tensor([0, 11, 30]))
    tokens = {n: y for n, y in x.items() if n != "state"}
    for i, (start, end) in enumerate([(0, 11), (11, 30)]):
        o_i, S_i = delta_product(**{n: y[:, start:end] for n, y in tokens.items()}, state=state[i : i + 1])
        assert relative_error(o[:, start:end], o_i) < 1e-12
        assert relative_error(S[i : i + 1], S_i) < 1e-12


def test_delta_product_without_decay():
    x = product_inputs()
    zero = delta_product(**x | {"log_alpha": torch.zeros_like(x["log_alpha"])})
    none = delta_product(**x | {"log_alpha": None})
    assert all(torch.equal(a, b) for a, b in zip(zero, none, strict=True))


def test_two_reflections_swap_and_one_flips():
    """β = 2 makes Householder reflections: one flips a sign (parity), two rotate; β ≤ 1 can do neither."""
    flip = torch.tensor([[1.0, 0.0]])
    k = flip.expand(1, 3, 1, 2)
    beta = signed_beta(torch.full((1, 3, 1), 50.0))
    q, v = k, torch.zeros(1, 3, 1, 1)
    o, _ = gated_delta_rule(q, k, v, None, beta, torch.ones(1, 1, 2, 1))
    assert o.flatten().tolist() == [-1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        (longhorn, {"beta": torch.zeros(2, 70, 2)}, "longhorn: beta is .* with H_v = 4, as v has"),
        (delta_product, {"v": torch.zeros(2, 30, 2, 4, 7)}, "delta_product: v is .* with n_h = 3, as k has"),
    ],
)
def test_bad_input_is_named(function, change, message):
    inputs = longhorn_inputs() if function is longhorn else product_inputs()
    with pytest.raises(ValueError, match=message):
        function(**inputs | change)
