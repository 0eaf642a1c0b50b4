"""generate() of transformers' own models by our ops, with guesses that are taken back."""

import copy
from contextlib import suppress

import pytest
import torch
from hf_models import generate, padded

import gated_deltanet

pytest.importorskip("transformers")

from stock_models import MORE, some, stock
from transformers import DynamicCache

from gated_deltanet.interop.transformers.acceleration import replacements_in_caches
from gated_deltanet.interop.transformers.functions import READING

guessing = pytest.mark.skipif(
    not replacements_in_caches(), reason="transformers' caches do not record: older than 5.17"
)

WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


@pytest.fixture(scope="module", params=MORE, name="model")
def every_architecture(request):
    return stock(request.param)


def tokens(n, seed=1):
    return torch.randint(2, 97, (n,), generator=torch.Generator().manual_seed(seed))


def test_generation_gives_the_tokens_of_stock(model, capfd):
    batch = padded([tokens(9), tokens(31), tokens(2)], "left")
    expected = {}
    for name, options in WAYS.items():
        with suppress(KeyError):  # some older versions have no static cache for these models
            expected[name] = generate(model, batch, **options)
    assert "greedy" in expected
    capfd.readouterr()
    with gated_deltanet.accelerate_transformers():
        for name, tokens_of_stock in expected.items():
            assert torch.equal(generate(model, batch, **WAYS[name]), tokens_of_stock), name
    assert capfd.readouterr() == ("", "")


def helper_of(model):
    """It guesses some tokens right and others wrong."""
    helper = copy.deepcopy(model)
    with torch.no_grad():
        weight = helper.get_input_embeddings().weight
        weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return helper


@guessing
@pytest.mark.parametrize("length", [1, 17])
def test_guesses_give_the_tokens_of_greedy_generation(model, accelerated, length, monkeypatch):
    prompt, removed = tokens(length)[None], []
    monkeypatch.setattr(DynamicCache, "crop", counted(DynamicCache.crop, removed))
    expected = generate(model, prompt, n=24)
    assert torch.equal(generate(model, prompt, n=24, assistant_model=helper_of(model)), expected)
    assert {0} < {*removed}  # of a helper's cache, too
    again = torch.cat([expected, prompt], 1)
    expected = generate(model, again, n=24)
    assert torch.equal(generate(model, again, n=24, prompt_lookup_num_tokens=5), expected)


def counted(crop, removed):
    def count(cache, n):
        removed.append(n)
        crop(cache, n)

    return count


@guessing
@torch.no_grad()
def test_crop_takes_back_what_was_recorded(model, accelerated):
    batch = torch.stack([tokens(20), tokens(20, seed=2)])
    cache = model(batch[:, :9], use_cache=True).past_key_values
    cache.activate_past_recording()
    for a, b in ((9, 12), (12, 13), (13, 17)):
        model(batch[:, a:b], past_key_values=cache)
    cache.crop(-6)
    logits = model(batch[:, 11:], past_key_values=cache).logits
    torch.testing.assert_close(logits, model(batch).logits[:, 11:], rtol=1e-4, atol=1e-5)
    cache.crop(0)
    assert not any(READING in vars(layer) for layer in cache.layers)
    model(batch[:, :2], past_key_values=cache)
    with pytest.raises(
        ValueError, match="3 tokens to take back from a recurrent state, expected at most the 2 recorded"
    ):
        cache.crop(-3)


@guessing
@torch.no_grad()
def test_crop_knows_nothing_from_before_a_change_of_rows(accelerated):
    model, batch = stock(*some("qwen3_5_text")), torch.stack([tokens(9), tokens(9, seed=2)])
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    model(batch[:, :7], past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    model(batch.flip(0)[:, 7:], past_key_values=cache)
    with pytest.raises(ValueError, match="expected at most the 2 recorded"):
        cache.crop(-3)


@guessing
def test_guesses_are_refused_again_after_undo(model):
    with gated_deltanet.accelerate_transformers():
        assert not model._is_stateful
    with pytest.raises(ValueError, match="not supported with stateful models"):
        generate(model, tokens(5)[None], prompt_lookup_num_tokens=3)
