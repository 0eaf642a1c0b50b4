"""transformers' own models by our ops: what they compute."""

import copy
from importlib.metadata import version

import pytest
import torch
from budget import assert_within_budget, relative_error

import gated_deltanet
from gated_deltanet.ops import gated_delta_rule, native, short_conv

pytest.importorskip("transformers")

from stock_models import MORE, random, some, stock, tokens

from gated_deltanet.interop.transformers import functions

EPS = torch.finfo(torch.float32).eps
VERSION = tuple(int(part) for part in version("transformers").split(".")[:2])


def logits_and_grads(model, batch):
    logits = model(batch).logits
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(logits, list(weights.values()), random(*logits.shape).to(logits), allow_unused=True)
    used = {name: grad for name, grad in zip(weights, grads, strict=True) if grad is not None}
    return {"logits": logits.detach()} | used


@pytest.mark.parametrize("model_type", MORE)
def test_logits_and_gradients_err_no_more_than_stock(model_type):
    batch = tokens(2, 83)
    theirs = logits_and_grads(stock(model_type), batch)
    with gated_deltanet.accelerate_transformers():
        ours = logits_and_grads(stock(model_type), batch)
        oracle = logits_and_grads(stock(model_type).double(), batch)  # where stock would fall back to float32
    assert relative_error(theirs["logits"], oracle["logits"]) < 1e-4  # the oracle is right
    for name, exact in oracle.items():
        assert relative_error(ours[name], exact) <= max(4 * relative_error(theirs[name], exact), 8 * EPS), name


@torch.no_grad()
def test_bfloat16_logits_err_no_more_than_stock():
    (name,) = some("qwen3_5_text")
    batch, model = tokens(2, 83), stock(name, torch.bfloat16)
    theirs = model(batch).logits
    with gated_deltanet.accelerate_transformers():
        ours, oracle = model(batch).logits, stock(name, torch.bfloat16).double()(batch).logits
    assert ours.dtype == torch.bfloat16
    assert relative_error(ours, oracle) <= 1.5 * relative_error(theirs, oracle)


@pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_are_projected_by_ours(monkeypatch, dtype):
    calls, real = [], functions.few_rows
    monkeypatch.setattr(functions, "few_rows", lambda *operands: calls.append(operands) or real(*operands))
    (name,), linear = some("qwen3_5_text"), torch.nn.Linear(13, 5).to(dtype)
    stock(name, dtype)  # whose module is what is accelerated
    few, many = (random(1, rows, 13).to(dtype) for rows in (functions.FEW, functions.FEW + 1))
    with torch.no_grad():
        expected = linear(few), linear(many)
    with gated_deltanet.accelerate_transformers():
        with torch.no_grad():
            found = linear(few), linear(many)
        assert len(calls) == 1
        assert linear(few).requires_grad
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            linear(few)
        with torch.no_grad(), pytest.raises(RuntimeError, match="shapes"):
            linear(few[..., 1:])
        with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
            linear(few.double())
    assert len(calls) == 1
    assert relative_error(found[0], expected[0]) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert torch.equal(found[1], expected[1])


def test_bfloat16_projections_are_ours_where_torch_is_slow(monkeypatch):
    monkeypatch.setattr(functions, "bfloat16_is_slow", lambda: True)
    (name,), own = some("qwen3_5_text"), torch.nn.Linear.forward
    batch, model, linear = tokens(2, 23), stock(name, torch.bfloat16), torch.nn.Linear(13, 5).bfloat16()
    x = random(3, 7, 13).bfloat16().requires_grad_()

    def output_and_grads(linear, x):
        y = linear(x)
        grads = torch.autograd.grad(y, [x, *linear.parameters()], random(3, 7, 5, seed=1).to(y))
        return {"y": y.detach(), "x": grads[0], "weight": grads[1], "bias": grads[2]}

    with torch.no_grad():
        theirs = model(batch).logits
    exact = output_and_grads(copy.deepcopy(linear).double(), x.detach().double().requires_grad_())
    with gated_deltanet.accelerate_transformers(), torch.no_grad():
        assert torch.nn.Linear.forward is not own
        ours, oracle = model(batch).logits, stock(name, torch.bfloat16).double()(batch).logits
        with torch.enable_grad():
            found = output_and_grads(linear, x)
    assert torch.nn.Linear.forward is own
    assert relative_error(ours, oracle) <= 1.5 * relative_error(theirs, oracle)
    for key, value in found.items():
        assert relative_error(value, exact[key]) <= (4e-3 if key == "y" else 1e-2), key


def rule_inputs(L):
    return {
        "query": random(2, L, 2, 8),
        "key": torch.nn.functional.normalize(random(2, L, 2, 8, seed=1), dim=-1),
        "value": random(2, L, 4, 12, seed=2),
        "g": -random(2, L, 4, seed=3).abs(),
        "beta": random(2, L, 4, seed=4).sigmoid(),
        "initial_state": random(2, 4, 8, 12, seed=5),
    }


@pytest.mark.parametrize("unit_keys", [True, False])
def test_rule_is_within_budget(unit_keys):
    def form(**inputs):
        return functions.gated_delta_rule(**inputs, output_final_state=True, use_qk_l2norm_in_kernel=unit_keys)

    def recurrence(query, key, value, g, beta, initial_state):
        if unit_keys:
            query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
        return gated_delta_rule(query * 8**-0.5, key, value, g, beta, initial_state, backend="reference")

    assert_within_budget(form, recurrence, rule_inputs(50), gates=("g", "beta"))


@pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
def test_few_tokens_give_the_bits_of_one_after_another():
    inputs = rule_inputs(functions.FEW)
    together = functions.gated_delta_rule(**inputs, output_final_state=True)
    state, o = inputs.pop("initial_state"), []
    for t in range(functions.FEW):
        token = {name: x[:, t : t + 1] for name, x in inputs.items()}
        of_token, state = functions.gated_delta_rule(**token, initial_state=state, output_final_state=True)
        o.append(of_token)
    assert torch.equal(together[0], torch.cat(o, 1))
    assert torch.equal(together[1], state)


@pytest.mark.parametrize("L", [1, 2, 3, 9])
@pytest.mark.parametrize("activation", ["silu", "gelu", None])
def test_convolution_goes_on_from_its_state(L, activation):
    x, weight, bias = random(2, 5, 7 + L), random(5, 4, seed=1), random(5, seed=2)
    expected = functions.causal_conv1d_fn(x, weight, bias, activation)
    state = x[..., 3:7].clone()
    torch.testing.assert_close(
        functions.causal_conv1d_update(x[..., 7:], state, weight, bias, activation), expected[..., 7:]
    )
    assert torch.equal(state, x[..., -4:])
    plain = short_conv(x.mT, weight, bias, activation=None)[0].mT
    act = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, None: lambda y: y}[activation]
    torch.testing.assert_close(expected, act(plain))


@torch.no_grad()
@pytest.mark.skipif(VERSION < (5, 15), reason="this transformers does not tell its layers where sequences end")
@pytest.mark.parametrize("names", [["cu_seq_lens_q"], ["seq_idx"], ["cu_seq_lens_q", "seq_idx"]])
@pytest.mark.parametrize("model_type", some("qwen3_5_text", "olmo_hybrid"))
def test_packed_rows_equal_separate_rows(accelerated, model_type, names):
    model, rows = stock(model_type), [tokens(1, n) for n in (9, 1, 23)]
    packing = {
        "cu_seq_lens_q": torch.tensor([0, 9, 10, 33], dtype=torch.int32),
        "seq_idx": torch.tensor([[0] * 9 + [1] + [2] * 23], dtype=torch.int32),
    }
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    options = {name: packing[name] for name in names} | {"position_ids": positions, "use_cache": False}
    logits = model(torch.cat(rows, 1), **options).logits
    expected = torch.cat([model(row).logits for row in rows], 1)
    assert relative_error(logits, expected) < 1e-5


def test_sequences_of_several_rows_are_kept_apart():
    x, weight = random(2, 5, 9), random(5, 4, seed=1)
    index = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 2, 2]])
    y = functions.causal_conv1d_fn(x, weight, seq_idx=index)
    for row, cut in ((0, 4), (1, 7)):
        parts = (functions.causal_conv1d_fn(part[None], weight) for part in x[row].split([cut, 9 - cut], -1))
        torch.testing.assert_close(y[row], torch.cat([*parts], -1)[0])


def test_a_state_of_other_sequences_is_refused():
    q = random(1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"initial_state is \[1, 2, 8, 8\], expected \[2, 2, 8, 8\]"):
        functions.gated_delta_rule(
            q,
            q,
            q,
            -q[..., 0].abs(),
            q[..., 0],
            initial_state=q.new_zeros(1, 2, 8, 8),
            cu_seqlens=torch.tensor([0, 2, 5]),
        )
