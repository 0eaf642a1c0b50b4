"""Our tokenizers as transformers reads them."""

import pytest
from hf_models import SMALL, nano
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gated_deltanet import CausalLM, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer, fingerprint, prompt_ids
from gated_deltanet.data.tokenizer import load as load_tokenizer

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from gated_deltanet.interop.huggingface import to_fast_tokenizer, to_huggingface  # noqa: E402


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
