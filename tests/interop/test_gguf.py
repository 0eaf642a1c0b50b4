"""Models of ours as GGUF files: what stands in them, and in the real llama.cpp (`make test-llama`) what they say."""

from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, Session, cli, get_preset, save
from gated_deltanet.data import tokenizer as tokenizers
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.config import ModelConfig

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
from gated_deltanet.interop.convert.gguf import to_gguf  # noqa: E402

NANO = get_preset("gdn-qwen35-nano")
ATTENTION = Attention(2, 32, 1, rope_theta=1e4, rope_dims=16, qk_norm="head", gate=True)
GROUPED = ModelConfig(
    64, 4, (GatedDeltaNet(2, 32, 32, n_v_heads=6), ATTENTION), 96, 300, tied=False, norm_eps=1e-6
)  # value heads that are permuted, a vocabulary that is padded
TEXT = "def main(argv):\n    return [x for x in argv if x]  # naïve\n" * 2


def trained(config, folder) -> CausalLM:
    """With weights that have opinions, after some steps on a text."""
    torch.manual_seed(0)
    model = CausalLM(config)
    for name, x in model.named_parameters():
        x.data += (0.02 if x.ndim > 1 and "conv" not in name else 0.2) * torch.randn_like(x)
    tokens = torch.tensor([tokenizers.prompt_ids(tokenizers.byte_tokenizer(), TEXT)])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(8):
        optimizer.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
    save(model, folder, tokenizers.byte_tokenizer())
    return model.eval()


def test_a_file_has_the_fields_and_tensors_of_qwen35(tmp_path):
    model = trained(GROUPED, tmp_path / "ours")
    to_gguf(tmp_path / "ours", tmp_path / "x.gguf", kind="q8_0")
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "qwen35"
    assert (fields["qwen35.ssm.group_count"], fields["qwen35.ssm.time_step_rank"]) == (2, 6)
    assert fields["qwen35.rope.dimension_sections"] == [3, 3, 2, 0]
    assert fields["qwen35.full_attention_interval"] == 2
    tokens = fields["tokenizer.ggml.tokens"]
    assert (len(tokens), tokens[65], tokens[256], tokens[299]) == (300, "A", "<|endoftext|>", "[PAD299]")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    kinds = {name: tensor.tensor_type.name for name, tensor in tensors.items()}
    assert kinds["blk.0.attn_qkv.weight"] == kinds["output.weight"] == kinds["blk.1.attn_q.weight"] == "Q8_0"
    assert (
        kinds["blk.0.ssm_alpha.weight"]
        == kinds["blk.0.ssm_conv1d.weight"]
        == kinds["blk.1.attn_q_norm.weight"]
        == "F32"
    )
    A = -model.get_parameter("layers.0.mixer.decay.A_log").detach().exp()
    assert tensors["blk.0.ssm_a"].data.tolist() == A[[0, 3, 1, 4, 2, 5]].tolist()
    assert len(tensors) == 2 * (14 + 11) + 3


def test_rows_that_are_no_whole_blocks_are_bfloat16(tmp_path):
    trained(replace(NANO, d_ff=200), tmp_path / "ours")
    to_gguf(tmp_path / "ours", tmp_path / "x.gguf", kind="q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("BF16", "Q8_0")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(NANO, mixers=(GatedDeltaNet(2, 32, 64), NANO.mixers[3])), "d_v is 64, llama.cpp's qwen35 has d_k, 32"),
        (replace(NANO, mixers=NANO.mixers[:1]), "the model has no attention"),
        (replace(NANO, mixers=NANO.mixers[2:][::-1]), "attention does not stand in every n-th layer"),
        (get_preset("gdn-h1-nano"), "Attention: window is 128"),
    ],
)
def test_what_llama_cpp_does_not_have_is_told(tmp_path, config, message, capsys):
    save(CausalLM(config), tmp_path / "ours")
    assert cli.main(["convert", str(tmp_path / "ours"), str(tmp_path / "x.gguf"), "--to", "gguf-f32"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(tmp_path):
    from tokenizers import pre_tokenizers

    tokenizer = tokenizers.byte_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    save(CausalLM(NANO), tmp_path / "ours", tokenizer)
    with pytest.raises(ValueError, match="splits text in a way of its own, expected bytes or GPT-2's way"):
        to_gguf(tmp_path / "ours", tmp_path / "x.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def in_llama_cpp(file):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama_cpp is not installed: make test-llama compiles it")
    options = {"n_ctx": 512, "n_threads": 2, "logits_all": True, "verbose": False}
    return llama_cpp.Llama(str(file), **options, type_k=0, type_v=0)  # keys and values in float32


@pytest.mark.slow
def test_llama_cpp_splits_text_as_our_tokenizer_does(tmp_path):
    tokenizer = tokenizers.train_bpe([TEXT, TEXT.upper()], 290)
    save(CausalLM(replace(NANO, vocab_size=290)), tmp_path / "ours", tokenizer)
    to_gguf(tmp_path / "ours", tmp_path / "x.gguf")
    text = TEXT + "It's   naïve: 12345 ÄÖ\t\n\n  if x==y:\n"
    assert in_llama_cpp(tmp_path / "x.gguf").tokenize(text.encode()) == tokenizers.prompt_ids(tokenizer, text)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-3), ("bf16", 0.1), ("q8_0", 0.3)])
@pytest.mark.parametrize("config", [NANO, GROUPED], ids=["nano", "grouped heads"])
def test_llama_cpp_gives_the_same_logits_and_text(tmp_path, config, kind, tolerance):
    with torch.enable_grad():
        model = trained(config, tmp_path / "ours")
    to_gguf(tmp_path / "ours", tmp_path / "x.gguf", kind=kind)
    theirs = in_llama_cpp(tmp_path / "x.gguf")
    tokens = theirs.tokenize(TEXT.encode(), add_bos=True)
    assert tokens == tokenizers.prompt_ids(tokenizers.byte_tokenizer(), TEXT)
    theirs.eval(tokens)
    expected = model(torch.tensor([tokens]))[0][0]
    assert (torch.from_numpy(theirs.scores[: len(tokens)]) - expected).abs().max() < tolerance
    if kind != "f32":
        return
    session, found, wanted = Session(model), [], []
    session.read(torch.tensor(tokens[:20]))
    for token in theirs.generate(tokens[:20], temp=0.0, repeat_penalty=1.0, reset=True):
        found.append(token)
        wanted.append(int(session.logits.argmax()))
        session.read(torch.tensor(wanted[-1:]))
        if len(found) == 40:
            break
    assert found == wanted
