"""What transformers' common tests ask of any model: attention, gradients, configs, weights."""

import copy
import re

import pytest
import torch
from budget import relative_error
from hf_models import ARCHITECTURES, SMALL, checkpointing_name, nano, padded, tokens
from safetensors.torch import save_file

from gated_deltanet import CausalLM, ModelConfig, get_preset, load, save
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.start import init_weights

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from gated_deltanet.interop.huggingface import GdnConfig, GdnForCausalLM, to_huggingface  # noqa: E402

NAMES = ("gdn", "gdn-h1", "gdn-h2", "mamba2", "transformer")
ATTENDING = ("gdn-h1", "gdn-h2", "transformer")
GROUPED = ModelConfig(24, 3, (Attention(4, 6, n_kv_heads=2, window=5), GatedDeltaNet(1, 4, 6)), 16, 257)
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of other roundings in every layer


def models(names):
    return pytest.mark.parametrize("name", names)


def batch_of(side):
    """Documents longer and shorter than the windows, padded on a side; None: as long as each other."""
    return {"input_ids": tokens(3, 70)} if side is None else padded([tokens(9), tokens(70), tokens(1)], side)


@torch.no_grad()
@models(NAMES)
@pytest.mark.parametrize("dtype", ERRORS)
def test_eager_attention_equals_sdpa(name, dtype, tmp_path):
    save(nano(name), tmp_path)
    sdpa = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    eager = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager")
    switched = copy.deepcopy(sdpa)
    switched.set_attn_implementation("eager")
    assert [x.config._attn_implementation for x in (sdpa, eager, switched)] == ["sdpa", "eager", "eager"]
    for side in ("left", "right", None):
        batch = batch_of(side)
        at = batch.get("attention_mask", torch.ones(3, 70)).bool()
        expected = sdpa(**batch).logits[at]
        logits = eager(**batch).logits[at]
        assert relative_error(logits, expected) < ERRORS[dtype]
        assert torch.equal(logits, switched(**batch).logits[at])
    with pytest.raises(ValueError, match="foo"):
        switched.set_attn_implementation("foo")


@torch.no_grad()
@pytest.mark.parametrize("model", [GROUPED, get_preset("gdn-h2-nano")], ids=["grouped", "h2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_attentions_are_weights_of_what_was_seen(model, side):
    torch.manual_seed(0)
    hf, batch = to_huggingface(CausalLM(model).eval()), batch_of(side)
    attentions = hf(**batch, output_attentions=True).attentions
    windows = [m.window for m in (model.mixer(i) for i in range(model.n_layers)) if isinstance(m, Attention)]
    mask = batch["attention_mask"].bool()
    position = mask.cumsum(1)
    age = position[:, :, None] - position[:, None]
    assert len(attentions) == len(windows)
    for weights, window in zip(attentions, windows, strict=True):
        seen = (age >= 0) & (age < (window or 70)) & mask[:, None] & mask[..., None]
        assert weights.shape == (3, hf.config.num_attention_heads, 70, 70)
        assert torch.equal(weights > 0, seen[:, None].expand_as(weights))
        torch.testing.assert_close(weights.sum(-1), mask[:, None].expand(weights.shape[:3]).float())


@torch.no_grad()
@models(ATTENDING)
@pytest.mark.parametrize("side", ["left", "right", None])
def test_attentions_go_on_from_a_cache(name, side):
    hf, batch = to_huggingface(nano(name)), batch_of(side)
    more = torch.cat([batch["input_ids"], tokens(3, 4, seed=2)], 1)
    mask = torch.nn.functional.pad(batch.get("attention_mask", torch.ones(3, 70)), (0, 4), value=1)
    whole = hf(more, attention_mask=mask, output_attentions=True)
    cache = hf(**batch, output_attentions=True).past_key_values
    for a, b in ((70, 73), (73, 74)):
        part = hf(more[:, a:b], attention_mask=mask[:, :b], past_key_values=cache, output_attentions=True)
        assert relative_error(part.logits, whole.logits[:, a:b]) < 1e-5
        for got, expected in zip(part.attentions, whole.attentions, strict=True):
            torch.testing.assert_close(got, expected[:, :, a:b, :b], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_attentions_without_the_mask_of_the_past_take_padding_to_be_first():
    hf, batch = to_huggingface(nano("gdn-h1")), batch_of("left")
    expected = hf(
        torch.cat([batch["input_ids"], tokens(3, 1)], 1),
        attention_mask=torch.nn.functional.pad(batch["attention_mask"], (0, 1), value=1),
        output_attentions=True,
    ).attentions
    cache = hf(**batch).past_key_values
    for got, want in zip(
        hf(tokens(3, 1), past_key_values=cache, output_attentions=True).attentions, expected, strict=True
    ):
        torch.testing.assert_close(got, want[:, :, -1:], rtol=1e-4, atol=1e-6)


def test_a_model_without_attention_has_no_attentions():
    assert to_huggingface(nano("mamba2"))(tokens(2, 5), output_attentions=True).attentions == ()


@models(NAMES)
@pytest.mark.parametrize("side", ["right", None])
def test_gradients_flow_through_hidden_states_and_attentions(name, side):
    hf = to_huggingface(nano(name)).train()
    out = hf(**batch_of(side), output_hidden_states=True, output_attentions=True)
    assert [len(out.hidden_states), len(out.attentions)] == [hf.config.n_layers + 1, attentions_of(hf)]
    kept = (*out.hidden_states, *out.attentions)
    for x in kept:
        x.retain_grad()
    out.logits[1, 60].sum().backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in kept)


def attentions_of(hf):
    config = hf.config.to_model_config()
    return sum(isinstance(config.mixer(i), Attention) for i in range(config.n_layers))


@torch.no_grad()
@models(NAMES)
def test_tuples_hold_what_dicts_hold(name):
    hf, batch = to_huggingface(nano(name)), batch_of("right")
    for more in ({}, {"output_hidden_states": True}, {"output_attentions": True}, {"labels": batch["input_ids"]}):
        named = hf(**batch, **more)
        plain = hf(**batch, **more, return_dict=False)
        assert len(plain) == len(named.to_tuple()) == len(more) + 2
        for a, b in zip(flat(plain), flat(named.to_tuple()), strict=True):
            assert torch.equal(a, b)
    hf.config.output_hidden_states = hf.config.return_dict = True
    assert len(hf(**batch).hidden_states) == hf.config.n_layers + 1


def flat(parts):
    return [x for part in parts for x in (flat(part) if isinstance(part, tuple) else [part]) if torch.is_tensor(x)]


@models(NAMES)
@pytest.mark.parametrize("options", [None, {"use_reentrant": False}, {"use_reentrant": True}], ids=str)
def test_gradient_checkpointing_changes_no_gradient(name, options):
    hf, batch, way = to_huggingface(nano(name)).train(), batch_of("right"), checkpointing_name()

    def grads():
        calls.clear()
        loss = hf(**batch, labels=batch["input_ids"], use_cache=True).loss
        loss.backward()
        found = {name: weight.grad for name, weight in hf.named_parameters()}
        hf.zero_grad()
        return found

    calls = []
    hf.model.get_submodule("layers.1.mixer_norm").register_forward_hook(lambda *_: calls.append(1))
    expected = grads()
    assert len(calls) == 1
    getattr(hf, f"{way}_enable")(options)
    assert getattr(hf, f"is_{way}")
    for key, grad in grads().items():
        torch.testing.assert_close(grad, expected[key])
    assert len(calls) == 2
    getattr(hf, f"{way}_disable")()
    assert not getattr(hf, f"is_{way}")
    grads()
    assert len(calls) == 1


def test_gradient_checkpointing_with_eager_attention_of_two_batches():
    """Run again, a layer meets the mask of its own batch."""
    hf, way = to_huggingface(nano("gdn-h1")).train(), checkpointing_name()
    hf.set_attn_implementation("eager")
    batches = [batch_of("right"), batch_of("left")]

    def grads():
        loss = sum(hf(**batch, labels=batch["input_ids"]).loss for batch in batches)
        return torch.autograd.grad(loss, list(hf.parameters()))

    expected = grads()
    getattr(hf, f"{way}_enable")()
    for got, want in zip(grads(), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_trainers_know_the_model_by_its_name():
    """Which is how label smoothing finds out that labels are to be shifted."""
    assert "GdnForCausalLM" in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GdnConfig.from_model_config(SMALL))
    loss = model.train()(torch.zeros(2, 5, dtype=torch.int64), labels=torch.zeros(2, 5, dtype=torch.int64)).loss
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@models(ARCHITECTURES)
def test_every_tensor_is_started_after_the_meta_device(name):
    with torch.device("meta"):
        hf = GdnForCausalLM(GdnConfig.from_model_config(get_preset(f"{name}-nano")))
    hf.to_empty(device="cpu")
    for x in (*hf.parameters(), *hf.buffers()):
        x.data.fill_(float("nan"))
    torch.manual_seed(3)
    hf.init_weights()
    expected = CausalLM(get_preset(f"{name}-nano"))
    torch.manual_seed(3)
    init_weights(expected)
    for (key, a), b in zip(hf.model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b), key
    assert hf.eval()(tokens(2, 9)).logits.isfinite().all()


@models(ARCHITECTURES)
def test_modules_kept_in_float32_are_there(name):
    hf = GdnForCausalLM(GdnConfig.from_model_config(get_preset(f"{name}-nano")))
    for kept in hf._keep_in_fp32_modules_strict:
        assert any(re.search(rf"(?:^|\.){kept}(?:\.|$)", key) for key in hf.state_dict())
    assert bool(hf._keep_in_fp32_modules_strict) == any("A_log" in key for key in hf.state_dict())


@pytest.mark.parametrize("tied", [True, False])
def test_fsdp_plan_names_every_part_once(tied):
    hf = GdnForCausalLM(GdnConfig.from_model_config(SMALL) if tied else GdnConfig(n_layers=1, tied=False, vocab_size=9))
    names = [name for name, _ in hf.named_modules()]
    patterns = [re.compile(key.replace(".", r"\.").replace("*", r"\d+") + "$") for key in hf._fsdp_plan]
    assert all(any(pattern.match(name) for name in names) for pattern in patterns)
    for name, _ in hf.named_parameters():
        holders = [name[: match.start()] for match in re.finditer(r"\.", name)]
        assert sum(bool(pattern.match(holder)) for holder in holders for pattern in patterns) == 1, name


@pytest.mark.parametrize("tied", [True, False])
def test_missing_weights_are_told_if_asked_for_and_else_an_error(tied, tmp_path):
    config = GdnConfig.from_model_config(ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50, tied=tied))
    GdnForCausalLM(config).save_pretrained(tmp_path)
    whole, info = GdnForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert (whole.config.tie_word_embeddings, info["missing_keys"]) == (tied, set())
    save_file({"tensor": torch.tensor([1, 2])}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, info = GdnForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {name for name, _ in model.named_parameters()}
    assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.isfinite().all()
    with pytest.raises(ValueError, match="is missing, expected all weights of its config"):
        GdnForCausalLM.from_pretrained(tmp_path)


def test_weights_can_be_handed_over():
    hf = to_huggingface(nano("gdn-h1"))
    again = GdnForCausalLM.from_pretrained(None, config=hf.config, state_dict=hf.state_dict())
    for a, b in zip(hf.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@torch.no_grad()
def test_shards_are_read_by_both_sides(tmp_path):
    model = nano("gdn-h1")
    to_huggingface(model).save_pretrained(tmp_path, max_shard_size="200KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 2
    expected = model(tokens(2, 9))[0]
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens(2, 9)).logits, expected)
    assert torch.equal(load(tmp_path)(tokens(2, 9))[0], expected)
    next(tmp_path.glob("*02-of*.safetensors")).unlink()
    with pytest.raises(FileNotFoundError, match=r"no model-00002-of-\d+.safetensors in"):
        load(tmp_path)


def test_config_round_trips(tmp_path):
    config = GdnConfig.from_model_config(GROUPED)
    config.save_pretrained(tmp_path)
    for again in (
        GdnConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        GdnConfig(**config.to_diff_dict()),
        GdnConfig.from_json_file(tmp_path / "config.json"),
    ):
        changed = {"transformers_version": again.transformers_version, "_name_or_path": again._name_or_path}
        assert again.to_dict() == config.to_dict() | changed
        assert again.to_model_config() == GROUPED


def test_config_has_what_every_config_has():
    assert GdnConfig().to_model_config() == get_preset("gdn-400m")
    for i, name in enumerate(("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")):
        config = GdnConfig(**{name: i})
        assert getattr(config, name) == i
        setattr(config, name, i + 7)
        assert getattr(config, name) == i + 7
    assert GdnConfig.from_model_config(GROUPED).num_attention_heads == 4
    assert GdnConfig.from_model_config(get_preset("mamba-nano")).num_attention_heads == 1
    assert len(GdnConfig(num_labels=5).id2label) == 5
    assert GdnConfig(attn_implementation="eager")._attn_implementation == "eager"
    config = GdnConfig(pad_token_id=7, tie_word_embeddings=False, dtype="float16", rms_norm_eps=1.0)
    assert (config.pad_token_id, config.tied, config.dtype) == (7, False, torch.float16)
    with pytest.raises(ValueError, match="d_model is 0"):
        GdnForCausalLM(GdnConfig(hidden_size=0))
    with pytest.raises(ValueError, match="mixers is missing, expected all of d_model, n_layers, mixers"):
        GdnConfig.from_dict({"d_model": 8, "n_layers": 1, "d_ff": 0, "vocab_size": 9})


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_grows_and_shrinks(tied):
    hf = to_huggingface(CausalLM(ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50, tied=tied)))
    before = hf.model.embedding.weight.detach().clone()
    for size, options in ((60, {}), (35, {}), (40, {"pad_to_multiple_of": 32})):
        hf.resize_token_embeddings(size, **options)
        expected = 64 if options else size
        assert (hf.config.vocab_size, hf.model.config.vocab_size) == (expected, expected)
        assert hf(torch.zeros(1, 2, dtype=torch.int64)).logits.shape[-1] == expected
        assert (hf.get_output_embeddings() is None) == tied
        assert torch.equal(hf.model.embedding.weight[:35], before[:35])
