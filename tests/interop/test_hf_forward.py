"""One forward pass as transformers asks for it: loss, logits, hidden states, other arguments."""

import pytest
import torch
from budget import relative_error
from hf_models import SMALL, generate, nano, padded, tokens

from gated_deltanet import CausalLM

transformers = pytest.importorskip("transformers")
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from gated_deltanet.interop.huggingface import to_huggingface  # noqa: E402


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("items", [None, 11])
def test_loss_is_that_of_transformers(side, items):
    hf, batch = to_huggingface(nano("gdn-h1")), padded([tokens(9), tokens(20)], side)
    labels = batch["input_ids"].clone()
    labels[1, 3:6] = -100
    out = hf(**batch, labels=labels, num_items_in_batch=items)
    labels[batch["attention_mask"] == 0] = -100
    labels[0, 11] = -100  # on the left the first token, before which nothing was said
    torch.testing.assert_close(out.loss, ForCausalLMLoss(out.logits, labels, 257, num_items_in_batch=items))
    hf.train()
    training = hf(**batch, labels=labels, num_items_in_batch=items)
    torch.testing.assert_close(training.loss, out.loss)
    assert training.logits is None
    asked = hf(**batch, labels=labels, num_items_in_batch=items, logits_to_keep=0)
    torch.testing.assert_close(asked.logits, out.logits)
    torch.testing.assert_close(asked.loss, out.loss)
    assert training.past_key_values is None


@torch.no_grad()
def test_only_the_logits_asked_for_are_made():
    hf, batch = to_huggingface(nano("gdn")), padded([tokens(9), tokens(20)], "left")
    logits = hf(**batch).logits
    torch.testing.assert_close(hf(**batch, logits_to_keep=2).logits, logits[:, -2:])
    torch.testing.assert_close(hf(**batch, logits_to_keep=torch.tensor([3, 19])).logits, logits[:, [3, 19]])
    assert torch.equal(hf(**batch, return_dict=False)[0], logits)


def test_calls_that_cannot_be_are_refused():
    hf, batch = to_huggingface(CausalLM(SMALL)), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"attention_mask is \[2, 1, 3, 3\], expected \[2, at least 3\]"):
        hf(batch, attention_mask=torch.ones(2, 1, 3, 3))
    with pytest.raises(ValueError, match=r"attention_mask is dict, expected \[2, at least 3\]"):
        hf(batch, attention_mask={})
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache, expected a StateCache"):
        hf(batch, past_key_values=transformers.DynamicCache())
    with pytest.raises(ValueError, match="cache_implementation is 'static', expected None"):
        generate(hf, batch, cache_implementation="static")


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_hidden_states_are_what_each_layer_and_the_head_read(side):
    model, documents = nano("gdn-h1"), [tokens(9), tokens(20)]
    hf, batch = to_huggingface(model), padded(documents, side)
    states = hf(**batch, output_hidden_states=True).hidden_states
    assert len(states) == model.config.n_layers + 1
    for i, document in enumerate(documents):
        at, x = batch["attention_mask"][i].bool(), model.embedding(document[None])
        assert relative_error(states[0][i][at], x[0]) < 1e-6
        assert relative_error(states[1][i][at], model.layers[0](x)[0][0]) < 1e-5
        assert relative_error(states[-1][i][at], model.hidden(document[None])[0][0]) < 1e-5
    assert hf(**batch).hidden_states is None


@torch.no_grad()
def test_what_others_pass_along_is_taken_or_refused():
    hf, batch = to_huggingface(nano("gdn")), padded([tokens(9), tokens(20)], "left")
    positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    passed = {"position_ids": positions, "output_attentions": False, "cache_position": torch.arange(20), "new": 3}
    assert torch.equal(hf(**batch, **passed).logits, hf(**batch).logits)
    with pytest.raises(ValueError, match=r"position_ids begin anew .* expected one document a row"):
        hf(tokens(1, 6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    with pytest.raises(ValueError, match="seq_idx is 1, expected one document a row"):
        hf(**batch, seq_idx=1)
    with pytest.raises(ValueError, match="input_ids and inputs_embeds: both are given, expected one of them"):
        hf(**batch, inputs_embeds=torch.zeros(2, 20, 96))
    with pytest.raises(ValueError, match="input_ids and inputs_embeds: neither is given"):
        hf()
