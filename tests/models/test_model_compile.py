"""torch.compile takes a whole model: training, and decoding from a state."""

import shutil
from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.models.state import tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"),
]
QUICK = ("gdn-h2",)  # which holds Gated DeltaNet, Mamba2 and a window


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MIXERS])
def test_compiled_model_trains_and_decodes_as_the_eager_one(name):
    torch.manual_seed(0)
    torch.compiler.reset()
    config = get_preset(f"{name}-nano")
    config = replace(config, n_layers=len(config.mixers))  # of each kind one: compiling is slow
    model, tokens = CausalLM(config), torch.randint(257, (2, 21))
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model.loss(tokens, tokens), parameters)
    loss = torch.compile(model.loss, fullgraph=True)
    for got, want in zip(torch.autograd.grad(loss(tokens, tokens), parameters), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)

    with torch.no_grad():
        _, state = model(tokens[:, :-1])
        logits, after = model(tokens[:, -1:], state)
        got, got_after = torch.compile(model.forward, fullgraph=True, backend="aot_eager")(tokens[:, -1:], state)
    torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    for a, b in zip(tensors(got_after), tensors(after), strict=True):
        b = b[:, : a.shape[1]] if b.ndim == 4 else b  # a cache may have room for more tokens
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()
