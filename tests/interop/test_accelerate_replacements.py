"""What of transformers' modules is put in the place of what, and back."""

import importlib
import sys
import types

import pytest
import torch

import gated_deltanet
from gated_deltanet.ops import gated_delta_rule

pytest.importorskip("transformers")

from stock_models import MORE, random, some, stock, tokens

from gated_deltanet.interop.transformers import functions, in_force
from gated_deltanet.interop.transformers.acceleration import replacements_in, replacements_in_caches


def test_undo_puts_back_what_was_there_and_again_is_as_good_as_once():
    kind = some("qwen3_5_text")[0].removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    places = {(holder, name) for holder, name, *_ in [*replacements_in(module), *replacements_in_caches()]}
    caches = 3 if replacements_in_caches() else 0  # whether it is stateful, two of the cache
    assert len(places) == 7 + caches  # four functions, two norms, the MLP

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


def test_a_rule_with_other_arguments_is_left_alone(accelerated, load):
    module = load("modeling_made_up_other", MODULE.replace("g, beta", "g"))
    assert "modeling_made_up_other" not in accelerated.modules
    with pytest.raises(RuntimeError, match="0 active drivers"):
        module.torch_chunk_gated_delta_rule(1, 2, 3, 4)


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
