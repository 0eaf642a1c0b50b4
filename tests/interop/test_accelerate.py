"""transformers' own models by our ops: what they compute, and what is put in the place of what."""

import copy
import importlib
import sys
import types
from importlib.metadata import version

import pytest
import torch
from budget import assert_within_budget, relative_error

import gated_deltanet
from gated_deltanet.ops import gated_delta_rule, native, short_conv

pytest.importorskip("transformers")

from stock_models import MORE, some, stock

from gated_deltanet.interop.transformers import functions, in_force
from gated_deltanet.interop.transformers.acceleration import replacements_in, replacements_in_caches

EPS = torch.finfo(torch.float32).eps
VERSION = tuple(int(part) for part in version("transformers").split(".")[:2])


@pytest.fixture(name="accelerated")
def in_the_test():
    with gated_deltanet.accelerate_transformers() as acceleration:
        yield acceleration


def tokens(*shape):
    return torch.randint(2, 97, shape, generator=torch.Generator().manual_seed(1))


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
    few, many = random(1, 3, 13).to(dtype), random(5, 13).to(dtype)
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


@pytest.mark.parametrize("unit_keys", [True, False])
def test_rule_is_within_budget(unit_keys):
    inputs = {
        "query": random(2, 50, 2, 8),
        "key": torch.nn.functional.normalize(random(2, 50, 2, 8, seed=1), dim=-1),
        "value": random(2, 50, 4, 12, seed=2),
        "g": -random(2, 50, 4, seed=3).abs(),
        "beta": random(2, 50, 4, seed=4).sigmoid(),
        "initial_state": random(2, 4, 8, 12, seed=5),
    }

    def form(**inputs):
        return functions.gated_delta_rule(**inputs, output_final_state=True, use_qk_l2norm_in_kernel=unit_keys)

    def recurrence(query, key, value, g, beta, initial_state):
        if unit_keys:
            query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
        return gated_delta_rule(query * 8**-0.5, key, value, g, beta, initial_state, backend="reference")

    assert_within_budget(form, recurrence, inputs, gates=("g", "beta"))


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


def test_undo_puts_back_what_was_there_and_again_is_as_good_as_once():
    kind = some("qwen3_5_text")[0].removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    places = {(holder, name) for holder, name, *_ in [*replacements_in(module), *replacements_in_caches()]}
    caches = 3 if replacements_in_caches() else 0  # whether it is stateful, two of the cache
    assert len(places) == 5 + caches  # four functions, a norm

    def found():
        return {(holder, name): vars(holder).get(name, "nothing") for holder, name in places}

    before, path = found(), list(sys.meta_path)
    acceleration = gated_deltanet.accelerate_transformers()
    during = found()
    assert all(during[place] is not before[place] for place in places)
    with gated_deltanet.accelerate_transformers() as again:
        assert (in_force(), again.modules, found()) == (acceleration, [], during)
    assert (in_force(), found()) == (acceleration, during)
    assert module.__name__ in acceleration.modules
    acceleration.undo()
    acceleration.undo()
    assert (in_force(), found(), sys.meta_path) == (None, before, path)


def kernelized(model):
    """As the package kernels leaves a model on a CPU, for which it has no kernels: its layers keep a forward each."""
    for module in model.modules():
        if hasattr(type(module), "kernel_layer_name") or type(module).__name__.endswith("RMSNormGated"):
            module.forward = types.MethodType(type(module).forward, module)
    return model


@torch.no_grad()
@pytest.mark.parametrize("model_type", MORE)
def test_logits_are_stock_s_bit_for_bit_before_and_after_it(model_type):
    batch, models = tokens(2, 43), {"plain": stock(model_type), "before": kernelized(stock(model_type))}
    own = stock(model_type)(batch).logits
    with gated_deltanet.accelerate_transformers():
        models["inside"] = kernelized(stock(model_type))
        ours = {name: model(batch).logits for name, model in models.items()}
        with gated_deltanet.accelerate_transformers():  # which changes nothing, nor does its end
            models["twice"] = kernelized(stock(model_type))
            assert all(torch.equal(models[name](batch).logits, ours["plain"]) for name in ("plain", "inside", "twice"))
        assert all(torch.equal(models[name](batch).logits, x) for name, x in ours.items())
    assert not torch.equal(ours["plain"], own)
    assert torch.equal(ours["inside"], ours["plain"])
    assert all(torch.equal(model(batch).logits, own) for model in models.values())
    with gated_deltanet.accelerate_transformers():
        assert all(torch.equal(models[name](batch).logits, x) for name, x in ours.items())


@torch.no_grad()
def test_kernelize_of_the_package_kernels_changes_nothing():
    (name,) = some("qwen3_5_text")
    batch, model = tokens(2, 43), stock(name)
    own = model(batch).logits
    try:
        model.set_use_kernels(True)
    except (ValueError, AttributeError, ImportError) as error:
        pytest.skip(f"kernels is not installed, or not as transformers wants it: {error}")
    assert torch.equal(model(batch).logits, own)
    with gated_deltanet.accelerate_transformers():
        ours = stock(name)(batch).logits
        model.set_use_kernels(True)
        assert torch.equal(model(batch).logits, ours)
    assert torch.equal(model(batch).logits, own)


def test_an_error_at_its_beginning_leaves_nothing_changed(load, monkeypatch):
    module = load("modeling_made_up_failing", MODULE)
    own = module.torch_chunk_gated_delta_rule
    monkeypatch.setattr("gated_deltanet.interop.transformers.acceleration.replacements_in_caches", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gated_deltanet.accelerate_transformers()
    assert in_force() is None
    assert module.torch_chunk_gated_delta_rule is own


def test_an_error_inside_undoes_it():
    with pytest.raises(KeyError), gated_deltanet.accelerate_transformers():
        raise KeyError
    assert in_force() is None


MODULE = """
import torch
from torch import nn

def torch_chunk_gated_delta_rule(query, key, value, g, beta, **kwargs):
    raise RuntimeError("0 active drivers")

def torch_recurrent_gated_delta_rule(query, key, value, g, beta, **kwargs):
    return "own"

causal_conv1d_fn, chunk_gated_delta_rule = None, None

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
"""
PICKING = """        self.causal_conv1d_fn = causal_conv1d_fn
        self.chunk_gated_delta_rule = chunk_gated_delta_rule or torch_chunk_gated_delta_rule
        self.recurrent_gated_delta_rule = torch_recurrent_gated_delta_rule
"""
KERNELS = """
class Kernel(nn.Module):
    forward = staticmethod(torch_chunk_gated_delta_rule)

torch_chunk_gated_delta_rule = Kernel()
"""


@pytest.fixture(name="load")
def import_of(tmp_path, monkeypatch):
    """Of a module with such a source; a name that no other has."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        return importlib.import_module(name)

    yield load
    for name in [name for name in sys.modules if name.startswith("modeling_made_up")]:
        del sys.modules[name]


def call(rule, device="cpu"):
    q, gate = torch.ones(1, 3, 2, 4, device=device), torch.zeros(1, 3, 2, device=device)
    return rule(q, q, q, g=gate, beta=gate)


@pytest.mark.parametrize("kind", ["functions", "kernels"])
def test_modules_imported_later_do_not_need_a_driver_and_keep_their_path_elsewhere(accelerated, load, kind):
    module = load(f"modeling_made_up_{kind}", MODULE + (KERNELS if kind == "kernels" else ""))
    assert accelerated.modules[-1] == f"modeling_made_up_{kind}"
    assert call(module.torch_chunk_gated_delta_rule)[0].shape == (1, 3, 2, 4)
    assert call(module.torch_recurrent_gated_delta_rule, "meta") == "own"
    accelerated.undo()
    assert call(module.torch_recurrent_gated_delta_rule) == "own"


def test_layers_that_hold_functions_are_accelerated_whenever_they_were_made(load):
    module = load("modeling_made_up_picking", MODULE + PICKING)
    before = module.Layer()
    with gated_deltanet.accelerate_transformers():
        layers = (before, module.Layer())
        for layer in layers:
            assert call(layer.chunk_gated_delta_rule)[0].shape == (1, 3, 2, 4)
            assert call(layer.recurrent_gated_delta_rule, "meta") == "own"
            assert layer.causal_conv1d_fn is functions.causal_conv1d_fn
            assert layer.to("meta").causal_conv1d_fn is None
    for layer in layers:
        assert call(layer.recurrent_gated_delta_rule) == "own"
        assert layer.causal_conv1d_fn is None


FLA = {
    "fla/__init__.py": "",
    "fla/ops/__init__.py": "",
    "fla/ops/gated_delta_rule/__init__.py": "from . import backends",
    "fla/ops/gated_delta_rule/backends.py": "from fla.backends import register",
    "fla/backends.py": """
class BaseBackend:
    pass

backends = {}

def register(operation):
    def decorator(cls):
        backends.setdefault(operation, []).append(cls())
        return cls
    return decorator
""",
}


@pytest.mark.parametrize("before", [True, False])
def test_flas_own_function_is_ours_on_a_cpu(tmp_path, monkeypatch, before):
    """By what FLA 0.6 asks of a backend, in a package of its name."""
    for name, source in FLA.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    if before:
        importlib.import_module("fla.ops.gated_delta_rule")
    acceleration = gated_deltanet.accelerate_transformers()
    try:
        importlib.import_module("fla.ops.gated_delta_rule")
        (backend,) = sys.modules["fla.backends"].backends["gated_delta_rule"]
        q = torch.nn.functional.normalize(random(2, 9, 2, 8), dim=-1)
        g, beta = -q[..., 0].abs(), q[..., 1].sigmoid()
        assert backend.chunk_gated_delta_rule_verifier(q, q, q, g, beta)[0]
        assert not backend.chunk_gated_delta_rule_verifier(q.to("meta"))[0]
        o, state = backend.chunk_gated_delta_rule(q, q, q, g, beta, scale=1.0, output_final_state=True)
        expected = gated_delta_rule(q, q, q, g, beta)
        torch.testing.assert_close((o, state), expected)
    finally:
        acceleration.undo()
        names = [name for name in sys.modules if name.split(".")[0] == "fla"]
        modules = {name: sys.modules.pop(name) for name in names}
    assert not backend.chunk_gated_delta_rule_verifier(q)[0]
    assert "fla.ops.gated_delta_rule.backends" in modules


def test_a_rule_with_other_arguments_is_left_alone(accelerated, load):
    module = load("modeling_made_up_other", MODULE.replace("g, beta", "g"))
    assert "modeling_made_up_other" not in accelerated.modules
    with pytest.raises(RuntimeError, match="0 active drivers"):
        module.torch_chunk_gated_delta_rule(1, 2, 3, 4)
