"""torch.export takes a model's prefill and a decoded token, each as one graph of our operators."""

import pytest
import torch
from budget import relative_error

from gated_deltanet import CausalLM, get_preset

TOKENS = torch.randint(257, (2, 9), generator=torch.Generator().manual_seed(0))


class Call(torch.nn.Module):
    """What is exported: a model's forward, whose state is a plain argument."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, state=None):
        return self.model(tokens, state)


@torch.no_grad()
@pytest.mark.parametrize("preset", ["gdn-nano", "gdn-qwen35-nano", "gdn-h2-nano"])
def test_prefill_and_a_decoded_token_are_exported(preset):
    torch.manual_seed(0)
    call = Call(CausalLM(get_preset(preset)).eval())
    logits, state = call(TOKENS)
    prefill = torch.export.export(call, (TOKENS,)).module()
    got, got_state = prefill(TOKENS)
    assert relative_error(got, logits) < 1e-6
    token = TOKENS[:, :1]
    step = torch.export.export(call, (token, state)).module()
    expected, after = call(token, state)
    got, got_after = step(token, got_state)
    assert relative_error(got, expected) < 1e-5
    assert relative_error(call(token, got_after)[0], call(token, after)[0]) < 1e-5  # and its state goes on
