"""Our state as a transformers cache."""

import pytest
import torch
from budget import relative_error
from hf_models import SMALL, nano, tokens

from gated_deltanet import CausalLM
from gated_deltanet.models.state import tensors

pytest.importorskip("transformers")

from gated_deltanet.interop.huggingface import StateCache, to_huggingface


def cache_of(hf, batch):
    return hf(batch).past_key_values


@torch.no_grad()
def test_cache_rows_are_reordered_selected_and_repeated():
    hf, batch = to_huggingface(nano("gdn-h2")), tokens(3, 9)
    rows = torch.tensor([2, 0, 2])
    for change, expected in [
        (lambda cache: cache.reorder_cache(rows), batch[rows]),
        (lambda cache: cache.batch_select_indices(rows[:2]), batch[rows[:2]]),
        (lambda cache: cache.batch_repeat_interleave(2), batch.repeat_interleave(2, 0)),
    ]:
        cache = cache_of(hf, batch)
        change(cache)
        for got, want in zip(tensors(cache.state), tensors(cache_of(hf, expected).state), strict=True):
            torch.testing.assert_close(got, want)
    cache.reset()
    assert (cache.state, cache.get_seq_length()) == (None, 0)


@torch.no_grad()
def test_crop_takes_back_what_was_recorded():
    hf, batch = to_huggingface(nano("gdn-h2")), tokens(2, 20)
    cache = cache_of(hf, batch[:, :9])
    cache.activate_past_recording()
    for a, b in ((9, 12), (12, 17)):
        hf(batch[:, a:b], past_key_values=cache)
    cache.crop(-2)
    cache.crop(-4)
    assert cache.get_seq_length() == 11
    cache.reorder_cache(torch.tensor([1, 0]))
    for a, b in ((11, 14), (11, 20)):
        logits = hf(batch.flip(0)[:, a:b], past_key_values=cache).logits
        assert relative_error(logits, hf(batch.flip(0)[:, :b]).logits[:, a:]) < 1e-5
        cache.crop(-(b - a) if b < 20 else 0)
    assert cache.get_seq_length() == 20


def test_crop_refuses_what_is_gone():
    hf = to_huggingface(CausalLM(SMALL))
    cache = hf(torch.zeros(1, 9, dtype=torch.int64), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="nothing was recorded, expected activate_past_recording"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="tokens_to_remove is 3, expected at most 0"):
        cache.crop(3)
    cache.activate_past_recording()
    hf(torch.zeros(1, 2, dtype=torch.int64), past_key_values=cache)
    with pytest.raises(ValueError, match="3 tokens to take back, expected at most the 2 recorded"):
        cache.crop(-3)


def test_cache_tells_how_long_it_is():
    assert repr(StateCache()) == "StateCache(0 tokens, 0 layers)"
