"""generate() of transformers over every architecture: padding, beams, samples, guesses."""

import copy

import pytest
import torch
from budget import relative_error
from hf_models import ARCHITECTURES, generate, nano, padded, tokens

from gated_deltanet.data.tokenizer import byte_tokenizer

pytest.importorskip("transformers")

from gated_deltanet.interop.huggingface import to_fast_tokenizer, to_huggingface


@pytest.fixture(scope="module", params=ARCHITECTURES, name="model")
def every_architecture(request):
    return nano(request.param)


@torch.no_grad()
def plain_loop(model, prompt, n=8):
    row, (logits, state) = [prompt], model(prompt)
    for _ in range(n):
        row.append(logits[:, -1:].argmax(-1))
        logits, state = model(row[-1], state)
    return torch.cat(row, 1)


def test_greedy_generation_equals_a_plain_loop(model):
    expected = plain_loop(model, tokens(2, 70))  # longer than the window
    assert torch.equal(generate(to_huggingface(model), tokens(2, 70)), expected)
    assert torch.equal(generate(to_huggingface(model), tokens(2, 70), use_cache=False), expected)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model, side):
    documents, hf = [tokens(9), tokens(70), tokens(1)], to_huggingface(model)
    batch = padded(documents, side)
    logits, L = hf(**batch).logits, 70
    sequences = generate(hf, batch)
    for i, document in enumerate(documents):
        expected, at = model(document[None])[0][0], batch["attention_mask"][i].bool()
        assert relative_error(logits[i][at], expected) < 1e-5
        assert torch.equal(sequences[i, L:], plain_loop(model, document[None])[0, len(document) :])


def test_prompts_in_chunks_may_hold_rows_of_padding_only(model):
    batch, hf = padded([tokens(9), tokens(70)], "left"), to_huggingface(model)
    assert torch.equal(generate(hf, batch, prefill_chunk_size=20), generate(hf, batch))


def test_beams_with_the_cache_equal_beams_without(model):
    batch, hf = padded([tokens(9), tokens(20)], "left"), to_huggingface(model)
    options = {"num_beams": 3, "num_return_sequences": 2}
    sequences = generate(hf, batch, **options)
    assert sequences.shape[0] == 4
    assert torch.equal(sequences, generate(hf, batch, use_cache=False, **options))


def test_samples_with_the_cache_equal_samples_without(model):
    sequences = []
    for use_cache in (True, False):
        torch.manual_seed(2)
        options = {"do_sample": True, "top_k": 5, "num_return_sequences": 3, "use_cache": use_cache}
        sequences.append(generate(to_huggingface(model), tokens(2, 9), **options))
    assert len(sequences[0].unique(dim=0)) == 6
    assert torch.equal(*sequences)


def test_generation_goes_on_from_a_returned_cache(model):
    batch, hf = padded([tokens(9), tokens(20)], "left"), to_huggingface(model)
    first = generate(hf, batch, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 27  # the last token has not been read yet
    question = torch.cat([first.sequences, tokens(2, 3, seed=5)], 1)
    more = {"input_ids": question, "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 11), value=1)}
    snapshot = copy.copy(first.past_key_values)
    expected = generate(hf, more)
    for cache in (first.past_key_values, snapshot):
        assert torch.equal(generate(hf, {**more, "past_key_values": cache}), expected)


def test_guessed_tokens_are_taken_back(model):
    expected = plain_loop(model, tokens(1, 9), n=12)
    helper = to_huggingface(copy.deepcopy(model))
    with torch.no_grad():
        weight = helper.model.embedding.weight
        weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(generate(helper, tokens(1, 9), n=12), expected)
    assert torch.equal(generate(to_huggingface(model), tokens(1, 9), n=12, assistant_model=helper), expected)


def test_stop_strings_end_a_generation():
    hf, tokenizer = to_huggingface(nano("gdn"), byte_tokenizer()), to_fast_tokenizer(byte_tokenizer())
    prompt = tokenizer("def f(", return_tensors="pt")
    text = tokenizer.decode(generate(hf, dict(prompt))[0, 7:])
    stop = next(c for c in text if c != "\N{REPLACEMENT CHARACTER}")
    stopped = generate(hf, dict(prompt), stop_strings=[stop], tokenizer=tokenizer)
    assert tokenizer.decode(stopped[0, 7:]) == text[: text.index(stop) + 1]
