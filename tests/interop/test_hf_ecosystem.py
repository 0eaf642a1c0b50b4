"""Our models in the tools around transformers: generate() in every way, pipelines, peft, device maps."""

import pytest
import torch
from hf_models import generate, nano, padded, tokens

from gated_deltanet import save
from gated_deltanet.data.tokenizer import byte_tokenizer

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM  # noqa: E402

from gated_deltanet.interop.huggingface import to_huggingface  # noqa: E402

NAMES = ("gdn", "gdn-h1", "gdn-h2", "mamba2", "transformer")
WAYS = {
    "greedy": {},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beam sample": {"num_beams": 2, "do_sample": True},
}


@pytest.fixture(scope="module", params=NAMES, name="model")
def every_kind(request):
    return nano(request.param)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_generation_tells_hidden_states_and_attentions(model, way, use_cache):
    hf, options, L = to_huggingface(model), WAYS[way], 20
    torch.manual_seed(0)
    out = generate(
        hf,
        padded([tokens(9), tokens(L)], "left"),
        n=3,
        use_cache=use_cache,
        return_dict_in_generate=True,
        output_hidden_states=True,
        output_attentions=True,
        output_scores=True,
        output_logits=True,
        **options,
    )
    rows = 2 * options.get("num_beams", options.get("num_return_sequences", 1))
    assert out.sequences.shape == (2 * options.get("num_return_sequences", 1), L + 3)
    assert [x.shape for x in (*out.scores, *out.logits)] == [(rows, 257)] * 6
    for i, (states, attentions) in enumerate(zip(out.hidden_states, out.attentions, strict=True)):
        now = 1 if use_cache and i else L + i
        assert {x.shape for x in states} == {(rows, now, hf.config.hidden_size)}
        assert {x.shape for x in attentions} <= {(rows, hf.config.num_attention_heads, now, L + i)}
        assert len(states) == hf.config.n_layers + 1
    assert len(out.hidden_states) == 3
    assert (out.past_key_values is None) != use_cache


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_from_embedded_tokens_equals_that_from_tokens(model, options):
    hf, batch = to_huggingface(model), padded([tokens(9), tokens(20)], "left")
    expected = generate(hf, batch, **options)
    embedded = {
        "inputs_embeds": hf.get_input_embeddings()(batch["input_ids"]),
        "attention_mask": batch["attention_mask"],
    }
    assert torch.equal(generate(hf, embedded, **options), expected[:, 20:])
    assert torch.equal(generate(hf, embedded | {"input_ids": batch["input_ids"]}, **options), expected)
    other = embedded | {"inputs_embeds": torch.randn(embedded["inputs_embeds"].shape)}
    assert not torch.equal(generate(hf, other, **options), expected[:, 20:])


@torch.no_grad()
def test_a_model_reads_embedded_tokens(model):
    hf, batch = to_huggingface(model), padded([tokens(9), tokens(20)], "right")
    x = hf.get_input_embeddings()(batch["input_ids"])
    out = hf(inputs_embeds=x, attention_mask=batch["attention_mask"], labels=batch["input_ids"])
    expected = hf(**batch, labels=batch["input_ids"])
    assert torch.equal(out.logits, expected.logits)
    assert torch.equal(out.loss, expected.loss)


def test_generation_goes_on_from_a_cache(model):
    hf, prompt = to_huggingface(model), tokens(2, 9)
    whole = generate(hf, prompt, n=6)
    first = generate(hf, prompt, n=4, return_dict_in_generate=True)
    rest = generate(hf, first.sequences, n=2, past_key_values=first.past_key_values)
    assert torch.equal(rest, whole)


def test_text_generation_pipeline(tmp_path):
    save(nano("gdn-h1"), tmp_path, byte_tokenizer())
    pipe = transformers.pipeline("text-generation", model=str(tmp_path), device="cpu")
    options = {"max_new_tokens": 5, "do_sample": False}
    together = pipe(["ab", "hello there"], batch_size=2, **options)
    assert together == [pipe(text, **options) for text in ("ab", "hello there")]
    assert together[0][0]["generated_text"].startswith("ab")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for the old name
@pytest.mark.parametrize("name", NAMES)
def test_lora(name, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    save(nano(name), tmp_path / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4)
    tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), config).train()
    weights = [weight for weight in tuned.parameters() if weight.requires_grad]
    optimizer, losses = torch.optim.SGD(weights, 0.5), []
    for _ in range(4):
        loss = tuned(input_ids=tokens(2, 20), labels=tokens(2, 20)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(weight.grad is not None for weight in weights)
    tuned.eval().save_pretrained(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        expected = tuned(input_ids=tokens(2, 20)).logits
        again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
        assert torch.equal(again(input_ids=tokens(2, 20)).logits, expected)
        merged = again.merge_and_unload()(tokens(2, 20)).logits
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("where", [{"": "cpu"}, "auto", "layers", "embedding"], ids=str)
def test_device_maps(where, tmp_path):
    pytest.importorskip("accelerate")
    model = nano("gdn-h1")
    save(model, tmp_path / "model")
    parts = {"model.embedding": "cpu", "model.norm": "cpu"} | {f"model.layers.{i}": "cpu" for i in range(4)}
    maps = {
        "layers": parts | {"model.layers.2": "disk", "model.layers.3": "disk"},
        "embedding": parts | {"model.embedding": "disk"},
    }
    device_map = maps[where] if where in ("layers", "embedding") else where
    hf = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "disk"
    )
    assert torch.equal(hf(tokens(2, 9)).logits, model(tokens(2, 9))[0])
    assert torch.equal(generate(hf, tokens(2, 9)), generate(to_huggingface(model), tokens(2, 9)))
