"""Every architecture of the paper as a Hugging Face model: files, generate(), padding, Trainer."""

import copy
import json
from dataclasses import fields
from itertools import islice

import pytest
import torch
from budget import relative_error
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gated_deltanet import CausalLM, ModelConfig, get_preset, load, save
from gated_deltanet.data.tokenizer import byte_tokenizer, fingerprint, prompt_ids
from gated_deltanet.data.tokenizer import load as load_tokenizer
from gated_deltanet.layers import GatedDeltaNet
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.models.state import tensors

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from gated_deltanet.interop.huggingface import (  # noqa: E402
    GdnConfig,
    GdnForCausalLM,
    StateCache,
    from_huggingface,
    to_fast_tokenizer,
    to_huggingface,
)

ARCHITECTURES = list(islice(MIXERS, 10))  # the paper's ten
SMALL = ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50)

transformers.utils.logging.disable_progress_bar()


def nano(name):
    torch.manual_seed(0)
    model = CausalLM(get_preset(f"{name}-nano"))
    for module in model.modules():  # so that no two tokens are nearly equally likely, nor the last one said again
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.15)
    return model.eval()


@pytest.fixture(scope="module", params=ARCHITECTURES, name="model")
def every_architecture(request):
    return nano(request.param)


def tokens(*shape, seed=1):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed))


def padded(documents, side):
    """With 7 for padding, which means nothing to the model."""

    def stack(rows, value):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)

    return {"input_ids": stack(documents, 7), "attention_mask": stack([torch.ones_like(x) for x in documents], 0)}


def generate(model, prompt, n=8, **options):
    inputs = prompt if isinstance(prompt, dict) else {"input_ids": prompt}
    return model.generate(**inputs, max_new_tokens=n, pad_token_id=256, **({"do_sample": False} | options))


@torch.no_grad()
def plain_loop(model, prompt, n=8):
    row, (logits, state) = [prompt], model(prompt)
    for _ in range(n):
        row.append(logits[:, -1:].argmax(-1))
        logits, state = model(row[-1], state)
    return torch.cat(row, 1)


@torch.no_grad()
def test_folders_are_read_by_both_sides_with_the_same_logits(model, tmp_path):
    save(model, tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    expected = model(tokens(2, 20))[0]
    assert isinstance(theirs, GdnForCausalLM)
    assert not theirs.training
    for logits in (
        theirs(tokens(2, 20)).logits,
        again(tokens(2, 20)).logits,
        load(tmp_path / "theirs")(tokens(2, 20))[0],
    ):
        assert torch.equal(logits, expected)
    assert load(tmp_path / "theirs").config == model.config


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
        helper.model.embedding.weight += 0.02 * torch.randn(257, 96, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(generate(helper, tokens(1, 9), n=12), expected)
    assert torch.equal(generate(to_huggingface(model), tokens(1, 9), n=12, assistant_model=helper), expected)


@pytest.mark.parametrize("how", ["dtype", "to", "auto"])
def test_decay_parameters_stay_float32(model, how, tmp_path):
    save(model if how != "auto" else copy.deepcopy(model).to(torch.bfloat16), tmp_path)
    dtype = {"dtype": torch.bfloat16} if how == "dtype" else {}
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, **dtype)
    for name, p in (hf.to(torch.bfloat16) if how == "to" else hf).named_parameters():
        assert p.dtype == (torch.float32 if name.endswith(("A_log", "dt_bias")) else torch.bfloat16), name
    saved = dict(model.named_parameters())
    for name, p in hf.model.named_parameters():
        if p.dtype == torch.float32:
            assert torch.equal(p, saved[name]), name
    generate(hf, padded([tokens(9), tokens(20)], "left"), n=2)


def test_conversion_shares_weights_and_keeps_the_mode(model):
    hf = to_huggingface(model, byte_tokenizer())
    assert from_huggingface(hf) is model
    assert hf.training == model.training
    assert hf.generation_config.eos_token_id == 256
    assert all(p.device.type == "cpu" for p in hf.parameters())


def test_building_keeps_our_start():
    torch.manual_seed(3)
    ours = CausalLM(get_preset("mamba-nano"))
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(GdnConfig.from_model_config(get_preset("mamba-nano")))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_config_has_the_fields_of_ours():
    theirs = {field.name for field in fields(GdnConfig)} - {
        field.name for field in fields(transformers.PreTrainedConfig)
    }
    assert theirs == {field.name for field in fields(ModelConfig)}
    config = GdnConfig.from_model_config(SMALL)
    assert config.to_model_config() == SMALL
    assert (config.hidden_size, config.num_hidden_layers, config.tie_word_embeddings) == (12, 2, True)


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


def test_gradient_checkpointing_is_ours():
    hf = to_huggingface(nano("gdn")).train()
    expected = torch.autograd.grad(hf(tokens(2, 20), labels=tokens(2, 20)).loss, list(hf.parameters()))
    hf.gradient_checkpointing_enable()
    assert hf.model.checkpointing
    assert hf.is_gradient_checkpointing
    got = torch.autograd.grad(hf(tokens(2, 20), labels=tokens(2, 20)).loss, list(hf.parameters()))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    hf.gradient_checkpointing_disable()
    assert not hf.model.checkpointing


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_can_grow(tied, tmp_path):
    hf = to_huggingface(CausalLM(ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50, tied=tied)))
    hf.resize_token_embeddings(60, mean_resizing=False)
    assert hf(torch.tensor([[59]])).logits.shape[-1] == 60
    hf.save_pretrained(tmp_path)
    assert load(tmp_path).config.vocab_size == 60


def test_folder_holds_a_tokenizer_auto_tokenizer_reads(tmp_path):
    hf, tokenizer = to_huggingface(nano("gdn"), byte_tokenizer()), to_fast_tokenizer(byte_tokenizer())
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    text = "né <|endoftext|>  x\n"
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(text)["input_ids"] == prompt_ids(byte_tokenizer(), text) == [256, *text.encode()]
    assert again(text, add_special_tokens=False)["input_ids"] == list(text.encode())
    assert again.decode(again(text)["input_ids"], skip_special_tokens=True) == text
    assert (again.eos_token_id, again.pad_token_id, again.padding_side) == (256, 256, "left")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == 256
    writer = transformers.pipeline("text-generation", model=model, tokenizer=again)
    assert len(writer("def ", max_new_tokens=3)[0]["generated_text"]) > 4


def test_tokenizer_without_an_end_of_text_gets_none():
    tokenizer = to_fast_tokenizer(Tokenizer(WordLevel({"a": 0, "b": 1}, "a")))
    assert (len(tokenizer), tokenizer.eos_token) == (2, None)


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


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def drop_a_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mixer.decay.dt_bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (lambda folder: change(folder, model_type="gnd"), "`gnd`"),
        (lambda folder: change(folder, tide=False), "a field is 'tide', expected perhaps tied"),
        (lambda folder: change(folder, mixers=[{"mixer": "Mamba3"}]), "mixer is 'Mamba3', expected perhaps Mamba"),
        (lambda folder: change(folder, mixers=[{"mixer": "RetNet", "n_head": 3}]), "perhaps n_heads"),
        (lambda folder: change(folder, d_model=0), "d_model is 0"),
        (lambda folder: change(folder, n_layers=3), r"model\.layers\.2.*is missing, expected all weights"),
        (drop_a_tensor, r"model\.layers\.1\.mixer\.decay\.dt_bias is missing, expected all weights"),
    ],
)
def test_spoiled_folder_is_refused_with_the_reason(spoil, message, tmp_path):
    save(CausalLM(SMALL), tmp_path)
    spoil(tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_fields_of_other_tools_are_kept(tmp_path):
    save(CausalLM(SMALL), tmp_path)
    change(tmp_path, use_cache=False, quantised_by="somebody")
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.quantised_by == "somebody"
    assert config.to_model_config() == SMALL


class Documents(torch.utils.data.Dataset):
    """Four, of unequal length, padded on the right; the first tokens of each are not to be learned."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        row = tokens(24, seed=i)
        mask = (torch.arange(24) < 24 - 3 * i).long()
        return {"input_ids": row, "attention_mask": mask, "labels": row.masked_fill((mask == 0) | (row < 30), -100)}


def train(folder, steps, *, resume=False, batch=2, accumulate=1, lr=3e-3, **options):
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, in the extra hf")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=4,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        learning_rate=lr,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    hf = to_huggingface(nano("gdn-h2"))
    trainer = transformers.Trainer(hf, arguments, train_dataset=Documents(), eval_dataset=Documents())
    trainer.train(resume_from_checkpoint=resume or None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, losses


def test_trainer_overfits_and_evaluates(tmp_path):
    trainer, losses = train(tmp_path, 20, gradient_checkpointing=True)
    assert trainer.model.model.checkpointing
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.evaluate()["eval_loss"] < 0.5 * losses[0]
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-20")


def test_trainer_resumes_identically(tmp_path):
    whole, losses = train(tmp_path, 8)
    (tmp_path / "checkpoint-8").rename(tmp_path / "whole")
    resumed, again = train(tmp_path, 8, resume=True)
    assert again == losses
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_accumulated_gradients_equal_one_large_batch(tmp_path):
    """Of documents with unequal numbers of labels: each label counts the same."""
    large, _ = train(tmp_path / "a", 1, batch=4, lr=1e-3, optim="sgd")
    small, _ = train(tmp_path / "b", 1, batch=1, accumulate=4, lr=1e-3, optim="sgd")
    for a, b in zip(large.model.parameters(), small.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_cache_tells_how_long_it_is():
    assert repr(StateCache()) == "StateCache(0 tokens, 0 layers)"


def test_our_folder_tells_auto_tokenizer_and_generate_where_a_text_ends(tmp_path):
    save(CausalLM(get_preset("gdn-nano")), tmp_path, byte_tokenizer())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == model.generation_config.eos_token_id == 256
    assert tokenizer.padding_side == "left"
    assert tokenizer("<|endoftext|>").input_ids == [256, *b"<|endoftext|>"]
    ours = load_tokenizer(tmp_path)
    assert fingerprint(ours) == fingerprint(byte_tokenizer())
    assert ours.encode("ab").ids == [97, 98]


@pytest.mark.parametrize("end", ["</s>", "<eos>"])
def test_end_of_text_may_have_another_name(end):
    words = Tokenizer(WordLevel({"a": 0, "b": 1, end: 2}, "a"))
    tokenizer, hf = to_fast_tokenizer(words), to_huggingface(CausalLM(SMALL), words)
    assert (tokenizer.eos_token, tokenizer.pad_token_id, hf.generation_config.eos_token_id) == (end, 2, 2)
    assert tokenizer("b").input_ids == [2, 1]


def test_stop_strings_end_a_generation():
    hf, tokenizer = to_huggingface(nano("gdn"), byte_tokenizer()), to_fast_tokenizer(byte_tokenizer())
    prompt = tokenizer("def f(", return_tensors="pt")
    text = tokenizer.decode(generate(hf, dict(prompt))[0, 7:])
    stop = next(c for c in text if c != "\N{REPLACEMENT CHARACTER}")
    stopped = generate(hf, dict(prompt), stop_strings=[stop], tokenizer=tokenizer)
    assert tokenizer.decode(stopped[0, 7:]) == text[: text.index(stop) + 1]


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
    assert not any(layer._forward_pre_hooks for layer in model.layers)


@torch.no_grad()
def test_what_others_pass_along_is_taken_or_refused():
    hf, batch = to_huggingface(nano("gdn")), padded([tokens(9), tokens(20)], "left")
    positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    passed = {"position_ids": positions, "output_attentions": False, "cache_position": torch.arange(20), "new": 3}
    assert torch.equal(hf(**batch, **passed).logits, hf(**batch).logits)
    with pytest.raises(ValueError, match=r"position_ids begin anew .* expected one document a row"):
        hf(tokens(1, 6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    with pytest.raises(ValueError, match=r"inputs_embeds is \[1, 2, 96\], expected input_ids"):
        hf(inputs_embeds=torch.zeros(1, 2, 96))
    with pytest.raises(ValueError, match="output_attentions is True, expected False"):
        hf(**batch, output_attentions=True)
    with pytest.raises(ValueError, match="input_ids is None"):
        hf()
